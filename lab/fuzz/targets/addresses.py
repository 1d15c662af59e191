"""Publisher URLs of all schemes, and templates: a publisher, or an error that shows no secret."""

from __future__ import annotations

from random import Random

from fencepost.errors import ConfigError
from fencepost.publishers.registry import masked, publisher_for
from fencepost.publishers.template import Template
from lab.fuzz import values
from lab.fuzz.command import SECRET
from lab.fuzz.target import ACCEPTED, Case, OneByOne, Result, failed, refused

GOOD = (
    f"http://u:{SECRET}@example.com/hook?timeout=5",
    f"http://example.com/h?secret=whsec_{SECRET}&envelope=cloudevents&source=/x/{{queue}}",
    f"http://example.com/h?query=token={SECRET}&allow_private=10.0.0.0/8",
    f"nats://u:{SECRET}@a:4222,b:4222?subject=x.{{event_type}}&stream=S",
    f"nats://{SECRET}@a",
    f"kafka://u:{SECRET}@k1:9092,k2:9092/?topic=shop.{{queue}}&rdkafka.linger.ms=5",
    f"amqp://u:{SECRET}@mq:5672/v%2Fh?exchange=e&routing_key={{key}}",
    f"redis://:{SECRET}@r:6379/3?stream={{event_type}}&maxlen=10&dedupe=60",
    f"redis://u:{SECRET}@r?wait_replicas=1&timeout=2",
    f"mqtt://u:{SECRET}@m:1883?topic=a/{{event_type}}",
    "sqs://eu-west-1/123456789012/q.fifo?max_bytes=1000",
    "sns://eu-west-1/123456789012/topic",
    "stdout:?envelope=cloudevents-structured",
)
TEMPLATES = ("shop.{event_type}", "{queue}/{key}", "{aggregate_type}.{aggregate_id}", "{{x}}{queue}", "a")


class Addresses(OneByOne):
    name = "addresses"
    share = 1

    def case(self, chance: Random) -> Case:
        if values.often(chance, 0.2):
            return {"template": values.damaged_text(chance, chance.choice(TEMPLATES))}
        url = chance.choice(GOOD)
        if not values.often(chance, 0.2):
            # The secret stays whole, or nobody could find it: the damage is before and behind it.
            before, secret, behind = url.partition(SECRET)
            damaged = (
                values.damaged_text(chance, each, 2) if values.often(chance, 0.6) else each
                for each in (before, behind)
            )
            url = secret.join(damaged)
        return {"url": url}

    def one(self, case: Case) -> Result:
        if "template" in case:
            return self._template(case["template"])
        url = case.get("url", "")
        texts = [masked(url)]
        try:
            texts.append(repr(publisher_for(url)))
            result = ACCEPTED
        except ConfigError as error:
            texts += [str(error), repr(error.__cause__ or "")]
            result = refused(error)
        if _has_user_information(url) and any(SECRET in text for text in texts):
            return failed("a secret is shown", next(text for text in texts if SECRET in text))
        return result

    def _template(self, text: str) -> Result:
        try:
            template = Template(text, "?topic=")
        except ConfigError as error:
            return refused(error)
        filled = template.filled("x")
        return ACCEPTED if filled else failed("an empty place", text)


def _has_user_information(url: str) -> bool:
    """Tell whether the secret stands where one can be known: before an ``@``, or as the value of an option."""
    before, _, behind = url.partition(SECRET)
    return ("@" in behind and (":" in before.partition("://")[2] or "@" not in behind.partition("/")[2])) or (
        "?" in before and "=" in before.rpartition("&")[2]
    )
