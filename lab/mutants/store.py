"""Sabotages of the operations: which statements are sent, in which order, and what their answers mean."""

from __future__ import annotations

from lab.mutants.mutant import of

MUTANTS = [
    *of(
        "store/fenced.py",
        "store/test_fence store/test_order_finalize store/test_heartbeat store/test_order_traps",
        (
            "heartbeat-locked-is-lost",
            "a row that is being finalized counts as lost at a heartbeat",
            "            renewed |= {row[0] for row in rows}\n",
            "            rows = []\n",
        ),
        (
            "close-unlocked",
            "an ordered finalize takes no locks of its keys",
            "    yield from order.lock_for_finalize(catalog, keys)\n",
            "",
        ),
        (
            "close-no-promote",
            "an ordered finalize promotes nobody",
            "    promoted = yield from order.promote(catalog, keys)\n",
            "    promoted = 0\n",
        ),
        (
            "close-promote-first",
            "promotion comes before the closing",
            '    rows = yield catalog.statement("mark_done_ordered", params)\n',
            '    yield from order.promote(catalog, keys)\n    rows = yield catalog.statement("mark_done_ordered", params)\n    keys = set()\n',
        ),
        (
            "close-refunds",
            "what was published out of turn gets its attempt back",
            "gone = yield from release(catalog, published, refund_attempt=False)",
            "gone = yield from release(catalog, published)",
        ),
        (
            "close-repeat-is-lost",
            "a repeated finalize is a lost lease",
            "            repeated |= standing\n            lost_ids |= lost(missing.ids, standing)\n",
            "            lost_ids |= lost(missing.ids, ())\n",
        ),
        (
            "finalize-repeat-is-lost",
            "a repeated retry, burial or release is a lost lease",
            "        written |= yield from _standing(catalog, group.without(written), target, outcome)\n",
            "        pass\n",
        ),
        (
            "reschedule-no-refunds",
            "deferred messages are left out of a mixed batch",
            "    for refund in (False, True):\n",
            "    for refund in (False,):\n",
        ),
        (
            "bury-one-outcome",
            "all of a burial get the outcome of the first",
            "chosen = {entry.claimed.id: entry for entry in entries if entry.outcome is outcome}",
            "chosen = {entry.claimed.id: entry for entry in entries}",
        ),
        (
            "by-token-first",
            "all rows are finalized under the first token",
            "groups.setdefault(each.token, {})",
            "groups.setdefault(min(groups, default=each.token), {})",
        ),
    ),
    *of(
        "store/finalize.py",
        "store/test_fence store/test_expand store/test_ledger store/test_order_finalize runtime/test_ledger",
        (
            "finalize-no-transaction",
            "ordered results are written without a transaction",
            "        or (isinstance(action, Done) and claimed.message.ordering_key is not None)\n",
            "",
        ),
        (
            "finalize-lost-unsaid",
            "what is lost at a burial is not reported",
            "    lost |= yield from fenced.mark_dead(catalog, buried)\n",
            "    yield from fenced.mark_dead(catalog, buried)\n",
        ),
        (
            "ledger-not-closed",
            "the ledger does not learn of ends",
            "    if any(claimed.ledger for claimed, _ in decided):\n",
            "    if all(not claimed.ledger for claimed, _ in decided):\n",
        ),
        (
            "ledger-busy-delivered",
            "an expansion that waits stands as expanded in the ledger",
            "    if claimed.id in found.busy:\n",
            "    if claimed.id in found.lost and claimed.id in found.busy:\n",
        ),
    ),
    *of(
        "store/expand.py",
        "store/test_expand runtime/test_destinations",
        (
            "expand-repeats",
            "a repeated expansion writes its messages again",
            "untouched = closed.lost | closed.out_of_turn | closed.repeated",
            "untouched = closed.lost | closed.out_of_turn",
        ),
        (
            "expand-lost",
            "an expansion under a lost lease writes its messages",
            "untouched = closed.lost | closed.out_of_turn | closed.repeated",
            "untouched = closed.out_of_turn | closed.repeated",
        ),
        (
            "expand-passes-by",
            "an expansion passes by one of its key that waits",
            "            held_up.add(key)\n",
            "",
        ),
        (
            "expand-through-lock",
            "an expansion is written though a producer holds the key",
            "(each.keys <= locked and key not in held_up)",
            "key not in held_up",
        ),
    ),
    *of(
        "store/outbox.py",
        "store/test_claims store/test_reap store/test_queues store/test_ledger store/test_order_claims store/test_many_queues",
        (
            "claim-past-batch",
            "each queue is asked for a whole batch",
            "room = min(batch, MAX_BATCH) - len(found.claimed)",
            "room = min(batch, MAX_BATCH)",
        ),
        (
            "reap-past-limit",
            "each queue is reaped up to the whole limit",
            "room = min(limit, MAX_BATCH) - len(buried)",
            "room = min(limit, MAX_BATCH)",
        ),
        (
            "dead-is-claimed",
            "what a claim made dead is handed out",
            "        if row[_STATUS] == State.PROCESSING\n",
            "",
        ),
        (
            "ledger-not-opened",
            "the ledger does not learn of claims",
            "    if claimed and claimed[0].ledger:\n",
            "    if claimed and not claimed[0].ledger:\n",
        ),
        (
            "rotation-stands",
            "a look at the queues always begins with the first",
            'rotation.after = next((queue for queue, _, is_cut_off in rows if is_cut_off), "")',
            'rotation.after = ""',
        ),
        (
            "claim-unsorted",
            "claimed messages come in any order",
            "for row in sorted(rows, key=itemgetter(0))",
            "for row in sorted(rows, key=itemgetter(0), reverse=True)",
        ),
    ),
    *of(
        "store/order.py",
        "store/test_order_enqueue store/test_order_traps store/test_order_finalize store/test_order_numbers",
        (
            "one-lock-for-both",
            "producers and finalizers share their locks",
            "PRODUCERS, FINALIZERS = 1, 2",
            "PRODUCERS, FINALIZERS = 1, 1",
        ),
        (
            "snapshot-allowed",
            "a closing under a snapshot is not refused",
            'not in ("read committed", "read uncommitted")',
            'in ("read uncommitted",)',
        ),
        ("numbers-kept", "a number that was not used is not given back", "{key: -1}", "{key: 0}"),
        (
            "numbers-turned",
            "numbers of one draw are handed out backwards",
            "numbers.append(last[key] - remaining[key])",
            "numbers.append(last[key] - (Counter(keys)[key] - 1 - remaining[key]))",
        ),
    ),
    *of(
        "store/enqueue.py",
        "store/test_order_enqueue store/test_order_numbers store/test_claims client/test_producers",
        (
            "enqueue-unlocked",
            "a producer takes no lock of its key",
            "counted = yield from order.lock_for_producers(catalog, [message])",
            "counted = frozenset[str]()\n    yield from ()",
        ),
        (
            "dedupe-any-content",
            "a dedupe key hides another event",
            "    if not same_content:\n",
            "    if same_content is None:\n",
        ),
    ),
    *of(
        "store/operators.py",
        "store/test_operators store/test_order_finalize store/test_order_traps",
        (
            "skip-unlocked",
            "a skip takes no locks of its keys",
            "    yield from order.lock_for_finalize(catalog, keys)\n",
            "",
        ),
        (
            "skip-no-promote",
            "a skip frees nobody",
            "    promoted = yield from order.promote(catalog, keys)\n",
            "    promoted = 0\n",
        ),
    ),
    *of(
        "store/jobs.py",
        "store/test_jobs store/test_ledger",
        (
            "lanes-busy-ignored",
            "lanes are claimed while another worker counts",
            "    is_ours: bool = rows[0][0]\n",
            "    is_ours: bool = True or rows[0][0]\n",
        ),
        (
            "job-ledger-not-opened",
            "the ledger does not learn of claims of jobs",
            "kept = [each for each in found.claimed if each.ledger]",
            "kept = [each for each in found.claimed if not each.ledger]",
        ),
    ),
    *of(
        "store/job_fenced.py",
        "store/test_jobs store/test_ledger store/test_deadlocks",
        (
            "job-repeat-is-lost",
            "a repeated finalize of a job is a lost lease",
            "return lost((claimed[place].id for place in missing), {row[0] for row in rows})",
            "return lost((claimed[place].id for place in missing), ())",
        ),
        (
            "job-defer-charged",
            "a deferred job is charged",
            "isinstance(a, Release) or (isinstance(a, Reschedule) and a.refund_attempt)",
            "isinstance(a, Release)",
        ),
        (
            "job-heartbeat-locked-is-lost",
            "a job that is being finalized counts as lost",
            "        kept |= {row[0] for row in rows}\n",
            "        rows = []\n",
        ),
    ),
    *of(
        "store/schedules.py",
        "store/test_schedules",
        (
            "tick-not-moved",
            "a schedule is not moved on",
            "    if found.last_tick > stored.last_tick or stored.definition != definition:\n",
            "    if stored.definition != definition:\n",
        ),
        (
            "definition-taken",
            "a schedule of a living worker is taken over",
            "        if not (adopts or stored.is_unseen):\n            return None\n",
            "",
        ),
    ),
    *of(
        "store/rate.py",
        "store/test_rate",
        (
            "rate-unspent",
            "a claim within a rate is not charged",
            "    if result.claimed:\n",
            "    if not result.claimed:\n",
        ),
    ),
    *of(
        "store/breaker.py",
        "store/test_breaker",
        (
            "threshold-one-late",
            "the shared breaker opens one failure late",
            "rows[0][0] < threshold",
            "rows[0][0] <= threshold",
        ),
        (
            "probe-not-reopened",
            "a probe that found nothing keeps the right to it",
            "    if not found.claimed:\n        # Nothing",
            "    if found.claimed:\n        # Nothing",
        ),
    ),
    *of(
        "store/inbox.py",
        "store/test_inbox",
        (
            "key-not-moved",
            "the number of a key is not written",
            'if (yield catalog.statement("inbox_key_move" if rows else "inbox_key_first", numbered)):',
            'if rows or (yield catalog.statement("inbox_key_first", numbered)):',
        ),
    ),
    *of(
        "store/keys.py",
        "store/test_keys",
        (
            "stranded-unlocked",
            "stranded keys are promoted without their locks",
            "    yield from order.lock_for_finalize(catalog, stranded)\n",
            "",
        ),
    ),
]
