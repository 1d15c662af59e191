/* Claims: claim.sql in three steps (what is due; what else is free in its keys; the obstacles and what is behind), then
 * the write and the commit. claim_suspects.sql in two. Which rows are due, and which locks are skipped, is left to chance.
 */

#define IS_DUE(m) (((row[m].status == pending && !row[m].reclaimed) || (BROKEN(claim_of_the_dead) && row[m].status == dead)) \
                   && (IS_FREE(m) || BROKEN(claim_without_lock)))
#define IN_CLAIM(m) ((ME.due & mates[m]) != 0)
#define PLACE(m) COUNT(ME.snapshot & earlier[m])
/* first_rows: as many of the key as are due, or more. */
#define IS_FIRST(m) (HAS(ME.snapshot, m) && IN_CLAIM(m) && (ME.spare || PLACE(m) < COUNT(ME.due & mates[m])))
#define IS_MORE(m) (IS_FIRST(m) && !HAS(ME.due, m) && IS_FREE(m) && !row[m].reclaimed \
                    && (row[m].status == pending || row[m].status == blocked))
#define IS_FREE_BLOCKED(m) (IS_MORE(m) && row[m].status == blocked)
#define IS_FREE_PENDING(m) (IS_MORE(m) && row[m].status == pending)
#define IS_OBSTACLE(m) (IN_CLAIM(m) && IS_HEAD(ME.snapshot, m) && !HAS(ME.free, m) \
                        && (BROKEN(park_without_heads_lock) || (IS_FREE(m) && row[m].status != done)))
#define IS_LEASED_OBSTACLE(m) (IS_OBSTACLE(m) && row[m].status == processing)
#define IS_IDLE_OBSTACLE(m) (IS_OBSTACLE(m) && row[m].status != processing)
#define IS_BEHIND(m) (HAS(ME.snapshot, m) && (ME.obstacles & earlier[m]) != 0 && !HAS(ME.locks, m) && IS_FREE(m) \
                      && (ME.due & later[m]) == 0 && row[m].status == pending && !row[m].reclaimed)
#define IS_OVER(m) (row[m].attempts >= limit && !BROKEN(claim_over_limit) \
                    && !(BROKEN(reclaim_over_limit) && row[m].status == processing))

inline begin_claim() {
    choose(WHERE(IS_DUE));
    d_step {
        if
        :: chosen != 0 ->
            ME.snapshot = open;
            ME.due = chosen;
            ME.locks = chosen;
            ME.at = CLAIM_MORE;
            printf("@ worker %d: claim locks what is due: {%d}\n", name[who], chosen)
        :: else
        fi
    };
    if :: chosen != 0 && !fine -> lock_more(); lock_obstacles() :: else fi
}

inline claim_more() { lock_more() }

inline claim_park() { lock_obstacles() }

inline lock_more() {
    if :: ME.spare = 0 :: ME.spare = 1 fi;
    choose(WHERE(IS_FREE_PENDING));
    d_step {
        ME.locks = ME.locks | chosen | WHERE(IS_FREE_BLOCKED);
        ME.free = ME.locks;
        ME.at = CLAIM_PARK;
        printf("@ worker %d: claim has locked what is free in its keys: {%d}\n", name[who], ME.free)
    }
}

inline lock_obstacles() {
    choose(WHERE(IS_LEASED_OBSTACLE));  /* expired, or not spared: it may be parked behind */
    d_step {
        ME.obstacles = chosen | WHERE(IS_IDLE_OBSTACLE);
        if
        :: BROKEN(park_without_heads_lock)
        :: else -> ME.locks = ME.locks | ME.obstacles
        fi
    };
    choose(WHERE(IS_BEHIND));
    d_step {
        ME.behind = chosen;
        ME.locks = ME.locks | chosen;
        ME.at = CLAIM_END;
        printf("@ worker %d: claim has locked the heads {%d}, and behind them {%d}\n", name[who], ME.obstacles, chosen)
    }
}

#define HAS_GAP(m) ((ME.snapshot & earlier[m] & ~ME.free) != 0 && !BROKEN(run_with_a_gap))
#define IS_OVER_IN(set, m) (HAS(set, m) && row[m].attempts >= limit)
#define OVER_BEFORE(m) (IS_OVER_IN(earlier[m], 0) || IS_OVER_IN(earlier[m], 1))
#define RUNS(m) (IS_FIRST(m) && HAS(ME.free, m) && !HAS_GAP(m) && !(OVER_BEFORE(m) && !BROKEN(run_with_a_gap)) \
                 && !((BROKEN(dead_head_stops_claim) || BROKEN(park_behind_any_key)) && ME.obstacles != 0))
#define OBSTACLE_OF(m) ((ME.obstacles & mates[m]) != 0 || (BROKEN(park_behind_any_key) && ME.obstacles != 0))
#define PARKS(m) ((HAS(ME.due, m) && OBSTACLE_OF(m) && !HAS(ME.obstacles, m)) || HAS(ME.behind, m))

inline claim_end() {
    d_step {
        set = WHERE(RUNS);
        chosen = WHERE(PARKS) & ~set;
        for (i : 0 .. N - 1) {
            if
            :: HAS(set, i) -> take(i)
            :: HAS(chosen, i) ->
                happens(i, park);
                row[i].status = blocked;
                MUST((ME.obstacles & mates[i]) != 0, I5_dead_head_blocks_its_key_only)
            :: else ->
                /* A head that was free is served, whatever stands in the way of other keys. */
                MUST(!(HAS(ME.due, i) && IS_HEAD(ME.snapshot, i)), I5_dead_head_blocks_its_key_only)
            fi
        };
        is_claimed()
    }
}

/* In its turn, and nobody has it: a row whose lease ran out is taken by suspects only. */
inline take(m) {
    MUST(row[m].status != processing || ME.at == TAKE_OVER, I9_one_live_lease);
    if
    :: IS_OVER(m) ->
        happens(m, claim_over_the_limit);
        row[m].status = dead;
        row[m].outcome = BY_HOLDER;
        raise_token(m)
    :: else ->
        if
        :: row[m].status == processing ->
            happens(m, reclaim);
            row[m].reclaimed = 1;
            MUST(!HAS(manual, m), manual_waits_for_a_person)
        :: else -> happens(m, claim)
        fi;
        for (j : 0 .. N - 1) {
            MUST(!HAS(earlier[m], j) || row[j].status == done || HAS(set, j), I4_claimed_in_order)
        };
        if :: !BROKEN(claim_keeps_token) && !(BROKEN(reclaim_keeps_token) && row[m].status == processing) -> raise_token(m)
           :: else
        fi;
        if :: !BROKEN(claim_does_not_charge) -> row[m].attempts++ :: else fi;
        row[m].charged++;
        row[m].status = processing;
        nobody_owns(m);
        ME.held = ME.held | BIT(m);
        ME.current = ME.current | BIT(m);
        ME.owns = ME.owns | BIT(m)
    fi
}

inline is_claimed() {
    ME.locks = 0;
    ME.snapshot = 0;
    ME.due = 0;
    ME.spare = 0;
    ME.free = 0;
    ME.obstacles = 0;
    ME.behind = 0;
    if :: ME.held != 0 -> ME.at = HOLDS :: else -> ME.at = IDLE fi;
    printf("@ worker %d: claim commits\n", name[who])
}

/* An expired lease is one that ran out before this look: it may have, at any moment. */
#define IS_EXPIRED(m) (row[m].status == processing && (!HAS(manual, m) || BROKEN(take_over_of_manual)) \
                       && (row[m].attempts < limit || BROKEN(reclaim_over_limit)))
#define IS_SUSPECT(m) (IS_FREE(m) && ((row[m].status == pending && row[m].reclaimed) || IS_EXPIRED(m)) \
                       && (IS_HEAD(open, m) || BROKEN(take_over_of_a_follower)))

inline begin_take_over() {
    if
    :: WHERE(IS_SUSPECT) != 0 ->
        choose_one(WHERE(IS_SUSPECT));
        if  /* has its lease run out? */
        :: row[chosen].status == processing && BROKEN(take_over_before_expiry) -> ME.spare = 1
        :: skip
        fi;
        d_step {
            ME.locks = BIT(chosen);
            ME.at = TAKE_OVER;
            printf("@ worker %d: a claim of suspects locks message %d\n", name[who], chosen)
        }
    :: else
    fi
}

inline take_over() {
    d_step {
        set = ME.locks;
        for (i : 0 .. N - 1) {
            if
            :: HAS(set, i) ->
                MUST(!ME.spare, I9_one_live_lease);
                take(i)
            :: else
            fi
        };
        is_claimed()
    }
}
