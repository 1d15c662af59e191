/* What a holder does: publish, heartbeat, finalize, crash. store/finalize.py writes what is done first: the keys' locks,
 * mark_done_ordered.sql, promote.sql, each a statement with a snapshot of its own; then what failed and what is released.
 */

/* fragments/message_fence.sql */
#define FENCE(m) ((row[m].status == processing || BROKEN(no_status_test)) && (HAS(ME.current, m) || BROKEN(no_token_test)))
#define CLOSE_FENCE(m) (FENCE(m) || (BROKEN(close_by_time) && row[m].status == processing))

/* Of a key one after another, each after the one before it was accepted. */
#define IS_NEXT(m) (HAS(ME.held & ~ME.published, m) \
                    && ((ME.held & ~ME.published & earlier[m]) == 0 || BROKEN(publish_past_a_failure)))
#define UNPUBLISHED WHERE(IS_NEXT)

inline publish() {
    choose_one(UNPUBLISHED);
    d_step {
        printf("@ worker %d: publishes message %d, which is accepted\n", name[who], chosen);
        for (i : 0 .. N - 1) {
            /* (What a stalled worker sends late is not promised to be in order.) */
            MUST(!HAS(earlier[chosen], i) || !HAS(ME.owns, chosen) || row[i].accepted || row[i].status == done,
                 I4_accepted_in_order)
        };
        row[chosen].accepted = 1;
        ME.published = ME.published | BIT(chosen)
    }
}

/* A failure, or what was not begun: behind it in its key, nothing was begun either. */
inline fail() {
    choose_one(UNPUBLISHED);
    ME.failed = chosen;
    if
    :: ME.ending = KEPT
    :: ME.ending = REFUNDED
    :: ME.ending = DEAD
    :: HAS(manual, chosen) -> ME.ending = UNKNOWN_DEAD
    fi;
    d_step {
        printf("@ worker %d: message %d fails (ending %d)\n", name[who], chosen, ME.ending);
        begin_finalize()
    }
}

inline finalize_what_is_published() {
    d_step {
        ME.failed = NOBODY_FAILED;
        begin_finalize()
    }
}

/* Only what closes ordered messages needs their keys. */
inline begin_finalize() {
    if :: ME.published != 0 -> ME.at = LOCK_KEYS :: else -> ME.at = COMMIT fi
}

/* heartbeat.sql is one statement: it moves the end of leases, and nothing that matters here. */
inline heartbeat() {
    d_step {
        for (i : 0 .. N - 1) {
            MUST(!HAS(ME.held, i) || !(FENCE(i) || BROKEN(heartbeat_without_fence)) || HAS(ME.owns, i),
                 I2_stale_token_changes_nothing)
        };
        skip
    }
}

#define KEYS_OF(set) ((HAS(set, 0) * mates[0]) | (HAS(set, 1) * mates[1]) | (HAS(set, 2) * mates[2]))
/* dead_keys.sql: of what is to be skipped, dead or not yet. */
#define DEAD_ONES(m) (HAS(ME.published, m) && row[m].status == dead)
#define MY_KEYS (BROKEN(skip_locks_keys_of_the_dead) && who == OPERATOR -> KEYS_OF(WHERE(DEAD_ONES)) : KEYS_OF(ME.published))
#define KEYS_ARE_FREE (BROKEN(no_key_lock) || ((ALL_KEY_LOCKS & ~ME.key_locks) & MY_KEYS) == 0)
#define IS_MINE(m) (HAS(ME.published, m) && CLOSE_FENCE(m))

/* The locks, and the snapshot of the statement after them. */
inline lock_keys() {
    d_step {
        ME.key_locks = MY_KEYS;
        ME.snapshot = open;
        if :: BROKEN(promote_in_one_statement) -> ME.parked = WHERE(IS_BLOCKED) :: else fi;
        if :: BROKEN(close_without_row_locks) -> ME.free = WHERE(IS_MINE) :: else fi;
        ME.at = LOCK_ROWS;
        printf("@ session %d: finalize has the locks of the keys of {%d}\n", name[who], ME.published)
    }
}

#define IN_TURN(m) (COUNT(ME.snapshot & earlier[m]) == COUNT(set & earlier[m]) || BROKEN(close_out_of_turn))

#define IS_MY_CLOSED(m) (HAS(ME.published, m) && !IS_MINE(m) && row[m].status == done && row[m].outcome == DELIVERED \
                         && (HAS(ME.current, m) || BROKEN(repeat_ignores_token)))

/* mark_done_ordered.sql: its rows are locked, then it is worked out whose turn it is. */
inline close_rows() {
    d_step {
        if
        :: BROKEN(close_without_row_locks) -> set = ME.free
        :: else -> set = WHERE(IS_MINE)
        fi;
        for (i : 0 .. N - 1) {
            if
            :: HAS(set, i) && IS_MINE(i) ->
                MUST(HAS(ME.owns, i), I2_stale_token_changes_nothing);
                ME.locks = ME.locks | BIT(i);
                if :: IN_TURN(i) -> ME.closing = ME.closing | BIT(i) :: else fi
            :: IS_MY_CLOSED(i) ->
                /* Told as a success: a try whose answer was lost wrote it. */
                MUST(HAS(ME.wrote, i), I2_lost_lease_is_told)
            :: else
            fi
        };
        ME.at = PROMOTE;
        printf("@ worker %d: finalize has closed {%d}\n", name[who], ME.closing)
    }
}

/* promote.sql, with the snapshot of its own statement: also what its own transaction closed is closed there. */
#define OPEN_NOW ((BROKEN(promote_in_one_statement) -> ME.snapshot : open) & ~ME.closing)
#define IS_PARKED_HEAD(m) (HAS(KEYS_OF(ME.published), m) && IS_HEAD(OPEN_NOW, m) \
                           && (BROKEN(promote_in_one_statement) -> HAS(ME.parked, m) : row[m].status == blocked))
inline find_heads() {
    d_step {
        ME.promoting = WHERE(IS_PARKED_HEAD);
        if :: BROKEN(close_without_promote) || (BROKEN(skip_without_promote) && who == OPERATOR) -> ME.promoting = 0
           :: else
        fi;
        if :: ME.promoting != 0 -> ME.at = LOCK_HEADS :: else -> ME.at = COMMIT fi
    }
}

inline lock_heads() {
    d_step {
        ME.promoting = ME.promoting & WHERE(IS_BLOCKED);
        ME.locks = ME.locks | ME.promoting;
        ME.at = COMMIT
    }
}

/* What failed, and what it held behind that. */
#define FAILS(m) (ME.at == COMMIT && ME.failed == m && who != OPERATOR)
#define IS_RELEASED(m) (HAS(ME.held & ~ME.published, m) && ME.failed != NOBODY_FAILED && HAS(later[FAILED], m) \
                        && !BROKEN(publish_past_a_failure))
#define FAILED (ME.failed == NOBODY_FAILED -> 0 : ME.failed)
#define THE_REST (WHERE(FAILS) | WHERE(IS_RELEASED))
/* Published, and out of its turn as an earlier one was lost: given back, its attempt counted. */
#define OUT_OF_TURN(m) HAS(ME.locks & ME.published & ~ME.closing & ~ME.promoting, m)
#define CLOSED(m) (row[m].status == done || HAS(ME.closing, m))

/* Three ends: told; committed, and the answer is lost; rolled back, and the worker does not know which. */
inline commit() {
    if
    :: chosen = 1
    :: answers_lost -> chosen = 2
    :: answers_lost -> chosen = 3
    fi;
    d_step {
        set = THE_REST;
        for (i : 0 .. N - 1) {
            if
            :: chosen == 3
            :: chosen != 3 && HAS(ME.closing, i) -> close(i)
            :: chosen != 3 && OUT_OF_TURN(i) ->
                happens(i, retry);
                row[i].status = pending;
                has_written(i)
            :: chosen != 3 && HAS(ME.promoting, i) -> promotes(i)
            :: chosen != 3 && HAS(set, i) -> write_end(i)
            :: else
            fi
        };
        if
        :: chosen == 1 ->
            printf("@ worker %d: finalize commits\n", name[who]);
            forget(set | ME.published)
        :: chosen == 2 -> printf("@ worker %d: finalize commits, its answer is lost\n", name[who])
        :: chosen == 3 -> printf("@ worker %d: finalize is rolled back, its connection is lost\n", name[who])
        fi;
        end_transaction();
        if :: chosen != 1 -> begin_finalize() :: else fi
    }
}

inline close(m) {
    for (j : 0 .. N - 1) {
        MUST(!HAS(earlier[m], j) || CLOSED(j), I4_finalized_in_order)
    };
    happens(m, delivered);
    row[m].status = done;
    row[m].outcome = DELIVERED;
    has_written(m)
}

inline promotes(m) {
    happens(m, promote);
    row[m].status = pending
}

inline has_written(m) {
    nobody_owns(m);
    ME.wrote = ME.wrote | BIT(m)
}

inline give_attempt_back(m) {
    if
    :: row[m].attempts > 0 -> row[m].attempts--
    :: else -> MUST(!BROKEN(refund_below_zero), I7_attempts_in_bounds)
    fi
}

#define ENDING(m) (ME.failed == m -> ME.ending : REFUNDED)
#define STANDS(m) ((row[m].status == pending && ENDING(m) <= REFUNDED) \
                   || (row[m].status == dead && ENDING(m) == DEAD && row[m].outcome == BY_HOLDER) \
                   || (row[m].status == dead && ENDING(m) == UNKNOWN_DEAD && row[m].outcome == UNKNOWN))

/* reschedule.sql, mark_dead.sql, release.sql; then finalized.sql, where the fence did not match. */
inline write_end(m) {
    if
    :: FENCE(m) ->
        MUST(HAS(ME.owns, m), I2_stale_token_changes_nothing);
        if
        :: ENDING(m) <= REFUNDED ->
            if
            :: ENDING(m) == KEPT -> happens(m, retry)
            :: else ->
                if :: ME.failed == m -> happens(m, defer) :: else -> happens(m, release) fi;
                give_attempt_back(m);
                if :: row[m].charged > 0 -> row[m].charged-- :: else fi
            fi;
            row[m].status = (BROKEN(release_to_blocked) && ME.failed != m -> blocked : pending)
        :: ENDING(m) == DEAD ->
            happens(m, permanent_failure);
            row[m].status = dead;
            row[m].outcome = BY_HOLDER
        :: ENDING(m) == UNKNOWN_DEAD ->
            happens(m, unknown_outcome);
            row[m].status = dead;
            row[m].outcome = UNKNOWN
        fi;
        has_written(m)
    :: !FENCE(m) && STANDS(m) && (HAS(ME.current, m) || BROKEN(repeat_ignores_token)) ->
        MUST(HAS(ME.wrote, m), I2_lost_lease_is_told);
        if :: BROKEN(repeat_refunds_twice) && ENDING(m) == REFUNDED -> give_attempt_back(m) :: else fi
    :: else
    fi
}

inline end_transaction() {
    ME.locks = 0;
    ME.key_locks = 0;
    ME.snapshot = 0;
    ME.parked = 0;
    ME.free = 0;
    ME.closing = 0;
    ME.promoting = 0
}

/* It holds these no more. */
inline forget(these) {
    ME.held = ME.held & ~(these);
    ME.current = ME.current & ME.held;
    ME.owns = ME.owns & ME.held;
    ME.published = 0;
    ME.wrote = 0;
    ME.failed = 0;
    ME.ending = 0;
    if :: ME.held != 0 -> ME.at = HOLDS :: else -> ME.at = IDLE fi
}

/* The process is gone, its transaction rolled back; its rows stay as they are. */
inline crash() {
    d_step {
        printf("@ session %d: crashes\n", name[who]);
        forget(7);
        end_transaction();
        ME.due = 0;
        ME.spare = 0;
        ME.obstacles = 0;
        ME.behind = 0
    }
}
