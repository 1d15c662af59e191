"""The targets, in the order in which they are run."""

from __future__ import annotations

from lab.fuzz.target import Target
from lab.fuzz.targets.addresses import Addresses
from lab.fuzz.targets.broker_answers import MqttAnswers, NatsAnswers, RedisAnswers
from lab.fuzz.targets.client_answers import RabbitAnswers, SnsAnswers, SqsAnswers
from lab.fuzz.targets.commands import Commands
from lab.fuzz.targets.configuration import Configuration
from lab.fuzz.targets.enqueue import EnqueueAsync, EnqueuePsycopg, EnqueueSession, EnqueueSqlalchemy
from lab.fuzz.targets.foreign import Foreign
from lab.fuzz.targets.http_answers import HttpAnswers
from lab.fuzz.targets.jobs import EnqueuedJobs, Schedules
from lab.fuzz.targets.received import ReceivedMessages
from lab.fuzz.targets.receivers import Receivers
from lab.fuzz.targets.travel import Travel

TARGETS: tuple[type[Target], ...] = (
    EnqueuePsycopg,
    EnqueueAsync,
    EnqueueSqlalchemy,
    EnqueueSession,
    Foreign,
    EnqueuedJobs,
    Schedules,
    Receivers,
    Travel,
    ReceivedMessages,
    Addresses,
    Configuration,
    Commands,
    HttpAnswers,
    RedisAnswers,
    NatsAnswers,
    MqttAnswers,
    RabbitAnswers,
    SqsAnswers,
    SnsAnswers,
)


def by_name(name: str) -> Target:
    """Return the target of this name."""
    return next(make() for make in TARGETS if make.name == name)
