"""What answers each statement, by the name of its file."""

from __future__ import annotations

from collections.abc import Mapping

from lab.fake_store import (
    claims,
    holders,
    inbox,
    job_holders,
    jobs,
    ledger,
    operators,
    ordering,
    producers,
    queues,
    schedules,
    suspects,
    upkeep,
)
from lab.fake_store.turn import Answer

_ANSWERS: tuple[Answer, ...] = (
    *(claims.claim, suspects.claim_suspects, suspects.reap, suspects.queues),
    *(holders.heartbeat, holders.held, holders.finalized, holders.mark_done, holders.mark_done_ordered),
    *(holders.mark_dead, holders.reschedule, holders.release),
    *(ordering.lock_keys, ordering.try_lock_keys, ordering.next_sequences, ordering.promote),
    *(ordering.keys_stranded, ordering.keys_freed),
    *(producers.enqueue, producers.enqueue_many, producers.enqueue_duplicate, producers.expand, producers.notify),
    *(operators.dead_retry, operators.dead_skip, operators.dead_keys, operators.dead_list),
    *(operators.show, operators.show_by_message_id),
    *(queues.queue_settings, queues.queue_hold, queues.queue_save, queues.queue_has_open),
    *(queues.breaker_failed, queues.breaker_delivered, queues.breaker_open, queues.breaker_probe),
    *(queues.breaker_close, queues.breaker_reopen, queues.rate_hold, queues.rate_spend),
    *(upkeep.session, upkeep.purge, upkeep.purge_holder),
    *(upkeep.stats_queues, upkeep.stats_dead, upkeep.stats_done, upkeep.stats_workers),
    *(inbox.inbox_accept, inbox.inbox_find, inbox.inbox_key_first, inbox.inbox_key_hold, inbox.inbox_key_move),
    *(inbox.inbox_purge, inbox.fence_admit, inbox.fence_find, inbox.fence_purge),
    *(jobs.job_enqueue, jobs.job_unique_find, jobs.job_queues, jobs.job_look, jobs.job_claim, jobs.job_lanes_lock),
    *(jobs.job_claim_lanes, jobs.job_claim_suspects, jobs.job_reclaim, jobs.job_purge),
    *(job_holders.job_held, job_holders.job_lock, job_holders.job_heartbeat, job_holders.job_done),
    *(job_holders.job_requeue, job_holders.job_fail, job_holders.job_finalized),
    *(job_holders.job_end, job_holders.job_retry, job_holders.job_refused),
    *(jobs.job_stats_queues, jobs.job_stats_failed),
    *(schedules.cron_look, schedules.cron_register, schedules.cron_sign, schedules.cron_hold, schedules.cron_move),
    *(ledger.ledger_open, ledger.ledger_close, ledger.ledger_purge, ledger.ledger_list, ledger.ledger_retries),
)

STATEMENTS: Mapping[str, Answer] = {answer.__name__: answer for answer in _ANSWERS}
