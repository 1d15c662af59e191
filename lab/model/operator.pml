/* A session that is nobody's worker: it reaps, and does what operators do. */

#define IS_RESET (BROKEN(reset_of_the_published) || BROKEN(refund_below_zero))
#define IS_DEAD(m) (((row[m].status == dead) || (BROKEN(retry_of_the_done) && row[m].status == done) \
                     || (IS_RESET && row[m].status == processing)) && IS_FREE(m))

/* dead_retry.sql, at once. */
inline operator_retry_of_one() {
    choose_one(WHERE(IS_DEAD));
    d_step {
        if
        :: row[chosen].status == processing ->
            row[chosen].attempts = 0;
            if :: BROKEN(refund_below_zero) -> row[chosen].charged = 0 :: else fi
        :: else ->
            happens(chosen, operator_retry);
            row[chosen].status = pending;
            row[chosen].outcome = 0;
            row[chosen].attempts = 0;
            row[chosen].charged = 0;
            row[chosen].reclaimed = 0;
            if :: !BROKEN(retry_keeps_token) -> raise_token(chosen) :: else fi
        fi;
        printf("@ operator: retries message %d\n", chosen)
    }
}

/* A skip names a message by its id: it may be dead only when its statement comes. */
#define IS_SKIPPABLE(m) ((row[m].status == dead || (operator == 2 && row[m].status == processing)) \
                         && (operator == 2 || (IS_FREE(m) && (ALL_KEY_LOCKS & mates[m]) == 0)))

inline begin_skip() {
    choose_one(WHERE(IS_SKIPPABLE));
    ME.published = BIT(chosen);
    if
    :: operator == 2 -> ME.at = LOCK_KEYS
    :: else ->
        d_step { ME.closing = BIT(chosen) };
        find_heads();
        if  /* A head that is locked is waited for: then it is not done at once. */
        :: (ME.promoting & locked) == 0 -> commit_skip()
        :: else -> d_step { forget(7); end_transaction() }
        fi
    fi
}

/* dead_skip.sql */
inline skip_rows() {
    d_step {
        ME.closing = ME.published & (WHERE(DEAD_ONES));
        ME.locks = ME.closing;
        ME.at = PROMOTE;
        printf("@ operator: skips {%d}, not committed yet\n", ME.closing)
    }
}

inline commit_skip() {
    d_step {
        for (i : 0 .. N - 1) {
            if
            :: HAS(ME.closing, i) ->
                happens(i, operator_skip);
                row[i].status = done;
                row[i].outcome = SKIPPED;
                if :: !BROKEN(skip_keeps_token) -> raise_token(i) :: else fi
            :: HAS(ME.promoting, i) -> promotes(i)
            :: else
            fi
        };
        printf("@ operator: the skip of {%d} commits\n", ME.published);
        forget(7);
        end_transaction()
    }
}

/* reap.sql: it finds rows by a snapshot, and looks again once it has their locks. */
#define IS_TO_BURY(m) (row[m].status == processing && ((row[m].attempts >= limit && !BROKEN(reap_of_manual_only)) || HAS(manual, m)))
#define IS_REAPABLE(m) (IS_TO_BURY(m) && (operator == 2 || IS_FREE(m)))

inline begin_reap() {
    choose_one(WHERE(IS_REAPABLE));
    d_step {
        ME.held = BIT(chosen);
        ME.at = REAP
    };
    if :: operator != 2 -> reap() :: else fi
}

inline reap() {
    d_step {
        for (i : 0 .. N - 1) {
            if
            :: HAS(ME.held, i) && (IS_TO_BURY(i) || BROKEN(reap_over_finalize)) ->
                if
                :: HAS(manual, i) ->
                    happens(i, reap_unknown);
                    row[i].outcome = UNKNOWN
                :: else ->
                    happens(i, reap_crashed);
                    row[i].outcome = CRASHED
                fi;
                row[i].status = dead;
                nobody_owns(i);
                if :: !BROKEN(reap_keeps_token) -> raise_token(i) :: else fi;
                printf("@ reaper: buries message %d\n", i)
            :: else
            fi
        };
        forget(7)
    }
}
