"""Sabotages of the dispatcher and the worker, where they decide about leases, fencing, order and delivery."""

from __future__ import annotations

from lab.mutants.mutant import of

_TOGETHER = "lab/test_crashes::test_undisturbed_everything_holds_and_what_belongs_together_is_one_transaction"

MUTANTS = [
    *of(
        "runtime/finalizer.py",
        "runtime/test_finalizer",
        (
            "batch-holds-twice",
            "a row may stand twice in one batch",
            "            if row_id in batch:\n                break\n",
            "",
        ),
        (
            "cut-batch-dropped",
            "a batch whose write was cancelled is forgotten",
            "            self._waiting.extendleft(reversed(batch))\n",
            "",
        ),
        (
            "one-refused-fails-all",
            "a row that the database refuses takes its neighbours along",
            "        if len(batch) > 1:\n",
            "        if len(batch) > 1_000_000:\n",
        ),
        (
            "finalize-never-atomic",
            "no finalize is all or nothing",
            "atomic=self._results.needs_transaction(batch)",
            "atomic=False",
        ),
        (
            "held-after-write",
            "what is written stays held",
            "        self._held.remove(holding for holding, _ in batch)\n        self._results.written",
            "        self._results.written",
        ),
    ),
    *of(
        "runtime/held.py",
        "runtime/test_held",
        (
            "overdue-beaten",
            "a publish that ignores its time-out keeps its lease for ever",
            "                and not each.is_overdue(now)\n",
            "",
        ),
        (
            "lost-beaten",
            "a lost lease is beaten on",
            "                if not each.lost\n                and",
            "                if",
        ),
        (
            "loss-unsaid",
            "a lost lease is not told to its publish",
            "            holding.lost.set()\n",
            "            pass\n",
        ),
        (
            "renewed-by-answer",
            "a heartbeat does not move the window",
            "holding.window = TrustWindow(sent_at, holding.window.lease)",
            "holding.window = TrustWindow(holding.window.sent_at, holding.window.lease)",
        ),
        (
            "expired-unseen",
            "the end of a window is not noticed",
            "not holding.lost and holding.window.is_over(now)",
            "holding.lost and holding.window.is_over(now)",
        ),
    ),
    *of(
        "runtime/heartbeat.py",
        "runtime/test_heartbeat",
        (
            "frozen-beats",
            "heartbeats go on while the loop is frozen",
            "now - self._asked_at > self._frozen_after:",
            "now - self._asked_at > 1000 * self._frozen_after:",
        ),
        (
            "heartbeat-dies",
            "a failed heartbeat ends all of them",
            "        except Exception as error:  # noqa: BLE001 - no failure may end the heartbeats\n",
            "        except ZeroDivisionError as error:\n",
        ),
        (
            "lost-renewed",
            "the window of a lost lease moves on",
            "[each for each in holdings if each.id not in lost], sent_at",
            "holdings, sent_at",
        ),
    ),
    *of(
        "runtime/flight.py",
        "runtime/test_flight",
        (
            "cut-off-is-unstarted",
            "a publish cut off in flight counts as not started",
            "            self.finish(holding, Cancelled())\n        for holding",
            "            self.finish(holding, Unstarted())\n        for holding",
        ),
        (
            "rest-kept",
            "what stands behind a failure is not given back",
            "            if holding.stage is Stage.WAITING:\n                self.finish(holding, Unstarted())\n\n",
            "            pass\n\n",
        ),
        (
            "no-timeout",
            "a publish is never timed out",
            "                task.cancel()\n            earliest",
            "                pass\n            earliest",
        ),
        (
            "released-twice",
            "at a stop, a batch that has not begun is given back twice",
            "            if lane.has_begun:  # else it gives itself back in its first step\n",
            "            if True:\n",
        ),
        (
            "alone-beside-others",
            "a crash suspect is published beside others",
            "        self._is_alone = True\n        try:\n            await self.landed_or_stopped()\n",
            "        self._is_alone = True\n        try:\n",
        ),
        (
            "age-at-claim",
            "the age of a message stands still while it is held",
            "age=claimed.age + timedelta(seconds=time.monotonic() - holding.claimed_at)",
            "age=claimed.age",
        ),
    ),
    *of(
        "runtime/flight.py",
        "runtime/test_shutdown::test_what_waits_behind_a_publish_of_its_key_goes_back_at_once",
        (
            "followers-kept",
            "at a stop, what waits behind a publish of its key is kept until that ends",
            "            if lane.has_begun:  # else it gives itself back in its first step\n"
            "                self.release_rest(lane)\n",
            "            pass\n",
        ),
    ),
    *of(
        "runtime/lane_runner.py",
        "runtime/test_flight",
        (
            "lane-goes-on",
            "what is behind a failed message of its key is published all the same",
            "            if not (isinstance(result, Delivered) or is_behind_routed) or holding.lost:\n",
            "            if False:\n",
        ),
        (
            "lane-past-lost",
            "a lane goes on behind a lost lease",
            "is_behind_routed) or holding.lost:\n",
            "is_behind_routed):\n",
        ),
        (
            "starts-when-lost",
            "a publish starts though its lease is lost",
            "if self._control.is_stopping or _is_lost(holding):\n            return Unstarted()",
            "if self._control.is_stopping:\n            return Unstarted()",
        ),
        (
            "batch-starts-when-over",
            "a batch is published whose leases may be over, though nobody has said so",
            "if self._control.is_stopping or _is_lost(holding) or key in held_back:",
            "if self._control.is_stopping or holding.lost or key in held_back:",
        ),
        (
            "timeout-is-cancelled",
            "a time-out counts as cut off by a shutdown",
            "                result = timed_out(holding) if holding.timed_out else Cancelled()\n",
            "                result = Cancelled()\n",
        ),
        (
            "batch-failures-counted",
            "what failed behind a failure of its key is charged",
            "                if key in failed and not isinstance(result, TimedOut | Cancelled):\n",
            "                if False:\n",
        ),
    ),
    *of(
        "runtime/lanes.py",
        "runtime/test_lanes",
        (
            "keys-apart",
            "messages of a key do not share a lane",
            "        elif key in keys:\n            keys[key].append(holding)\n",
            "",
        ),
        (
            "verified-in-batch",
            "a message to be verified goes out in a batch",
            "    if any(holding.claimed.is_to_verify for holding in group):\n        return None\n",
            "",
        ),
        (
            "slots-overfull",
            "a lane takes slots that are not there",
            "lane.width <= self.limit:\n",
            "lane.width <= self.limit + 1:\n",
        ),
    ),
    *of(
        "core/suspects.py",
        "runtime/test_suspects runtime/test_job_suspects",
        (
            "suspects-in-batches",
            "suspects come in batches from the first one on",
            "SUSPECTS_BEFORE_BATCH = 3",
            "SUSPECTS_BEFORE_BATCH = 0",
        ),
        (
            "suspects-spare-one",
            "whoever failed once by itself may be dead for what another one of its batch did",
            "SPARE_ATTEMPTS = 2",
            "SPARE_ATTEMPTS = 1",
        ),
    ),
    *of(
        "runtime/claimer.py",
        "runtime/test_suspects runtime/test_leases::test_an_answer_that_came_too_late_is_given_back_with_its_attempt"
        " runtime/test_batches::test_with_both_methods_a_batch_comes_by_publish_batch_and_a_suspect_alone",
        (
            "window-from-answer",
            "the window of trust is counted from the answer of a claim",
            "        window = TrustWindow(sent_at, terms.lease.total_seconds())\n",
            "        window = TrustWindow(time.monotonic(), terms.lease.total_seconds())\n",
        ),
        (
            "suspects-never-alone",
            "a crash suspect is not published alone",
            "                return Batch(found, alone=True)\n        self._survived = 0\n",
            "                return Batch(found)\n        self._survived = 0\n",
        ),
        (
            "any-suspect-survives",
            "what crashed again and again counts for those that crashed once",
            "        if holding.claimed.reclaim_count == 1:\n",
            "        if True:\n",
        ),
        (
            "suspects-starve-others",
            "suspects come first every time",
            "                self._owes_normal = True\n                return batch",
            "                return batch",
        ),
    ),
    *of(
        "runtime/claimer.py",
        _TOGETHER,
        (
            "probe-not-atomic",
            "a probe's claim is not all or nothing",
            "terms.queue, patience=patience),\n                atomic=True,",
            "terms.queue, patience=patience),\n                atomic=False,",
        ),
        (
            "ledger-claim-not-atomic",
            "a claim and what the ledger says of it are two transactions",
            "result = await link.run(lambda: claim(many()), atomic=terms.ledger)",
            "result = await link.run(lambda: claim(many()))",
        ),
    ),
    *of(
        "runtime/link.py",
        "runtime/test_link_repairs",
        (
            "link-gives-up",
            "a cut connection is not repaired",
            "if tried == tries or fault is Fault.OTHER or",
            "if tried == tries or fault is not Fault.TRANSIENT or",
        ),
        (
            "link-no-answer-limit",
            "a silent server is waited for for ever",
            "await asyncio.wait([task], timeout=limit)",
            "await asyncio.wait([task], timeout=None)",
        ),
        (
            "link-snapshot",
            "transactions follow the server's own isolation",
            '"BEGIN ISOLATION LEVEL READ COMMITTED"',
            '"BEGIN"',
        ),
        (
            "link-reuses",
            "a connection that met a fault is used on",
            "if not isinstance(error, Exception) or fault_of(error) is not Fault.TRANSIENT:",
            "if not isinstance(error, Exception):",
        ),
        (
            "limits-above-lease",
            "a transaction may stay open for longer than a lease",
            "idle=min(30.0, seconds / 2),",
            "idle=30.0 + seconds,",
        ),
    ),
    *of(
        "runtime/lane_runner.py",
        "runtime/test_recovery::test_a_verify_that_ignores_a_cut_off_and_then_says_not_done_publishes_nothing",
        (
            "verified-past-cut-off",
            "a publish begins after the cut-off in which its verify was cancelled",
            "if known is not None or _is_lost(holding) or self._control.is_cut_off:",
            "if known is not None or _is_lost(holding):",
        ),
    ),
    *of(
        "runtime/job_flight.py",
        "runtime/test_job_suspects",
        (
            "any-suspect-job-survives",
            "jobs that crashed again and again count for those that crashed once",
            "        if held.claimed.reclaim_count == 1:\n",
            "        if held.claimed.reclaim_count > 0:\n",
        ),
    ),
    *of(
        "runtime/classify.py",
        "runtime/test_flight runtime/test_outcomes::test_a_permanent_failure_is_dead_at_once",
        (
            "permanent-retried",
            "a permanent failure is tried again",
            "            return Refused(_reason(error))\n",
            "            return Failed(_reason(error))\n",
        ),
        (
            "own-end-swallowed",
            "a cancelled publish counts as failed",
            "    if _is_our_own_end(error):\n        raise error\n",
            "",
        ),
    ),
    *of(
        "runtime/results.py",
        "runtime/test_leases::test_a_lost_lease_is_told_to_the_running_publish_and_its_result_is_refused",
        (
            "lost-counted-delivered",
            "a lost lease counts as delivered",
            "            if holding.id in found.lost:\n",
            "            if holding.id in found.lost and False:\n",
        ),
    ),
    *of(
        "runtime/reaper.py",
        f"runtime/test_reaper {_TOGETHER}",
        (
            "reaper-dies",
            "one failed reap ends all of them",
            '            log.exception("reaping failed in a way that is not understood: %s", describe(error))\n',
            "            raise RuntimeError(describe(error)) from error\n",
        ),
        (
            "stranded-by-halves",
            "stranded keys are promoted without a transaction",
            "functools.partial(_next_stranded, catalog, after), atomic=True)",
            "functools.partial(_next_stranded, catalog, after))",
        ),
    ),
    *of(
        "runtime/job_results.py",
        "runtime/test_worker::test_an_async_handler_whose_lease_is_lost_is_cancelled_and_changes_nothing",
        (
            "job-lost-completed",
            "a job whose lease was lost counts as completed",
            "            if held.id in found:\n",
            "            if held.id in found and False:\n",
        ),
    ),
    *of(
        "runtime/schedules.py",
        _TOGETHER,
        (
            "ticks-not-atomic",
            "a tick and the move of its schedule are two transactions",
            "ticked = await self._link.run(step, atomic=True)",
            "ticked = await self._link.run(step)",
        ),
    ),
    *of(
        "drivers/faults.py",
        "runtime/test_link_repairs",
        (
            "read-only-is-ours",
            "a server that became read-only is not left",
            '        "25006",  # read_only',
            '        "25xxx",  # read_only',
        ),
        (
            "deadlock-is-ours",
            "a deadlock is not tried again",
            '        "40P01",  # deadlock',
            '        "40xxx",  # deadlock',
        ),
    ),
]
