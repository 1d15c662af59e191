/* The lease, the fence and the order of fencepost's outbox, as spin explores them. Read README.md first.
 *
 * One process makes one step of one session at a time, so that what is stored are the states between steps. A step is
 * what PostgreSQL does at once: it takes a snapshot, locks rows, or commits. What a transaction has written is kept
 * in its session (closing, promoting) and becomes visible at its commit; its locks last until then.
 * Sets of messages are bit masks. Message 0 is the oldest.
 */

#include "table.pml"
#include "variants.pml"

#define N 3      /* messages */
#define OPERATOR 3
#define BIT(m) (1 << (m))
#define HAS(set, m) (((set) >> (m)) & 1)
#define COUNT(set) (((set) & 1) + (((set) >> 1) & 1) + (((set) >> 2) & 1))
#define WHERE(test) ((test(0)) | ((test(1)) << 1) | ((test(2)) << 2))
#define BROKEN(name) (variant == V_##name)

c_decl { \#include <stdlib.h> }
c_decl { \#include <string.h> }

/* What spin says was violated. All are false, so that "I2_... || it holds" names what does not. */
hidden byte I1_nothing_sleeps, I2_stale_token_changes_nothing, I2_lost_lease_is_told, I3_attempts_are_charged;
hidden byte I4_claimed_in_order, I4_accepted_in_order, I4_finalized_in_order, I5_dead_head_blocks_its_key_only;
hidden byte I7_attempts_in_bounds, I9_one_live_lease, I9_tokens_rise, I10_somebody_can_take_it, I12_terminal;
hidden byte manual_waits_for_a_person, as_the_table_says;
hidden byte it_happens;   /* not a fault: an event was looked for, by its number */
#define SOUGHT 100
#define MUST(holds, property) assert(property || (holds))

/* --- what is explored; from the environment, see config.py -------------------------------------------- */

hidden byte variant;      /* which sabotage; 0 is fencepost as it is */
hidden byte workers;      /* 1 to 3 */
hidden byte key[N];
hidden byte limit;        /* of attempts */
hidden byte manual;       /* the messages whose recovery is manual */
hidden byte operator;     /* 0 nobody, 1 in one step, 2 step by step; it reaps as well */
hidden byte answers_lost; /* connections are cut at COMMIT */
hidden byte enqueues;     /* messages are enqueued meanwhile, not all before */
hidden byte fine;         /* claims lock in three steps, not in one */
hidden byte earlier[N], later[N], mates[N];  /* of the same key; mates: with itself */

/* --- the table, and the sessions ------------------------------------------------------------------------ */

typedef Row {
    mtype:state status;
    unsigned attempts : 3;
    unsigned reclaimed : 1;   /* reclaim_count > 0 */
    unsigned outcome : 3;
    unsigned accepted : 1;    /* by the destination, once at least */
    unsigned charged : 3;     /* claims since an operator's retry, less what was rightly given back */
}
#define DELIVERED 1
#define SKIPPED 2
#define BY_HOLDER 3           /* permanent, exhausted, expired or unroutable: what a holder says */
#define CRASHED 4
#define UNKNOWN 5

Row row[N];

typedef Session {
    unsigned at : 4;          /* where it stands, below */
    unsigned held : 3;        /* what it believes to hold */
    unsigned current : 3;     /* ... of that, where its token is still the row's. (Tokens only rise: equal or stale.) */
    unsigned owns : 3;        /* ... of that, what nobody took from it and it did not write: the truth, which no SQL sees */
    unsigned published : 3;   /* or, of an operator's session: what it skips */
    unsigned failed : 2;      /* the message that fails, 3 for none; what it holds behind that in its key is released */
    unsigned ending : 3;
    unsigned wrote : 3;       /* by a try whose answer was lost */
    unsigned locks : 3;
    unsigned key_locks : 3;   /* as the messages of the locked keys */
    unsigned snapshot : 3;    /* what was open as the statement began */
    unsigned parked : 3;      /* ... and blocked (for a sabotage) */
    unsigned due : 3;
    unsigned spare : 1;       /* the claim goes beyond the number of due rows */
    unsigned free : 3;
    unsigned obstacles : 3;
    unsigned behind : 3;
    unsigned closing : 3;     /* done, not committed yet */
    unsigned promoting : 3;
}
#define IDLE 0
#define CLAIM_MORE 1
#define CLAIM_PARK 2
#define CLAIM_END 3
#define TAKE_OVER 4
#define HOLDS 5
#define LOCK_KEYS 6
#define LOCK_ROWS 7
#define PROMOTE 8
#define LOCK_HEADS 9
#define COMMIT 10
#define REAP 11
#define NOBODY_FAILED 3
/* How a holder's attempt ended, by what it does to the row. */
#define KEPT 1                /* retry, cancelled in flight */
#define REFUNDED 2            /* defer, outage, release */
#define DEAD 3                /* exhaust, expire, permanent failure, unroutable */
#define UNKNOWN_DEAD 4        /* unknown outcome */

Session session[4];
#define ME session[who]

typedef Change {              /* of a row in this step; empty between steps */
    mtype:event event;
    mtype:state before;
    unsigned attempts : 3;
    unsigned raised : 1;
}
Change change[N];
byte who, set, chosen, i, j;  /* of the step; 0 between steps */
byte open, locked;            /* what is open, and what others have locked, as the step begins */

#define OPEN(m) (row[m].status != done && row[m].status != absent)
#define IS_BLOCKED(m) (row[m].status == blocked)
#define ALL_LOCKS (session[0].locks | session[1].locks | session[2].locks | session[OPERATOR].locks)
#define ALL_KEY_LOCKS (session[0].key_locks | session[1].key_locks | session[2].key_locks | session[OPERATOR].key_locks)
#define IS_FREE(m) (!HAS(locked, m))
#define IS_HEAD(of, m) (HAS(of, m) && ((of) & earlier[m]) == 0)

inline look() {
    d_step {
        open = WHERE(OPEN);
        locked = ALL_LOCKS & ~ME.locks
    }
}

/* Any part of the set. */
inline choose(from) {
    set = from;
    chosen = 0;
    if :: set & 1 -> if :: chosen = chosen | 1 :: skip fi :: else fi;
    if :: set & 2 -> if :: chosen = chosen | 2 :: skip fi :: else fi;
    if :: set & 4 -> if :: chosen = chosen | 4 :: skip fi :: else fi
}

/* One of the set, which is not empty. */
inline choose_one(from) {
    set = from;
    if
    :: set & 1 -> chosen = 0
    :: set & 2 -> chosen = 1
    :: set & 4 -> chosen = 2
    fi
}

/* Note what happens to a row, before it is changed. */
inline happens(m, what) {
    change[m].event = what;
    change[m].before = row[m].status;
    change[m].attempts = row[m].attempts
}

/* Nobody's old token is the row's any more. */
inline raise_token(m) {
    change[m].raised = 1;
    for (j : 0 .. OPERATOR) { session[j].current = session[j].current & ~BIT(m) }
    real_token[m]++
}

inline nobody_owns(m) {
    for (j : 0 .. OPERATOR) { session[j].owns = session[j].owns & ~BIT(m) }
}

/* For the counterexample only: the true tokens and names, which no state depends on. */
hidden byte real_token[N];
hidden byte name[4];

#include "claim.pml"
#include "finalize.pml"
#include "operator.pml"
#include "judge.pml"

inline step_of_a_worker() {
    if
    :: ME.at == IDLE -> begin_claim()
    :: ME.at == IDLE -> begin_take_over()
    :: ME.at == CLAIM_MORE -> claim_more()
    :: ME.at == CLAIM_PARK -> claim_park()
    :: ME.at == CLAIM_END -> claim_end()
    :: ME.at == TAKE_OVER -> take_over()
    :: ME.at == HOLDS && UNPUBLISHED != 0 -> publish()
    :: ME.at == HOLDS && UNPUBLISHED != 0 -> fail()
    :: ME.at == HOLDS && ME.published != 0 -> finalize_what_is_published()
    :: ME.at == HOLDS -> heartbeat()
    :: ME.at == LOCK_KEYS && KEYS_ARE_FREE -> lock_keys()
    :: ME.at == LOCK_ROWS && (ME.published & locked) == 0 -> close_rows()
    :: ME.at == PROMOTE -> find_heads()
    :: ME.at == LOCK_HEADS && (ME.promoting & locked) == 0 -> lock_heads()
    :: ME.at == COMMIT && (THE_REST & locked) == 0 -> commit()
    :: ME.at != IDLE -> crash()
    fi
}

inline step_of_the_operator() {
    if
    :: ME.at == IDLE && WHERE(IS_DEAD) != 0 -> operator_retry_of_one()
    :: ME.at == IDLE && WHERE(IS_SKIPPABLE) != 0 -> begin_skip()
    :: ME.at == IDLE && WHERE(IS_REAPABLE) != 0 -> begin_reap()
    :: ME.at == REAP && (ME.held & locked) == 0 -> reap()
    :: ME.at == LOCK_KEYS && KEYS_ARE_FREE -> lock_keys()
    :: ME.at == LOCK_ROWS && (ME.published & locked) == 0 -> skip_rows()
    :: ME.at == PROMOTE -> find_heads()
    :: ME.at == LOCK_HEADS && (ME.promoting & locked) == 0 -> lock_heads()
    :: ME.at == COMMIT -> commit_skip()
    :: ME.at != IDLE -> crash()
    :: else
    fi
}

/* A producer commits: with its key's lock, not before the earlier ones of the key have committed. */
#define IS_ABSENT(m) (row[m].status == absent)
#define IS_COMING(m) (IS_ABSENT(m) && (set & earlier[m]) == 0)
inline enqueue() {
    d_step {
        set = (BROKEN(no_producers_lock) -> 0 : WHERE(IS_ABSENT));
        set = WHERE(IS_COMING)
    };
    choose_one(set);
    row[chosen].status = pending;
    printf("@ producer: message %d is committed\n", chosen)
}

active proctype world() {
    d_step { configure() }
    do
    :: atomic {
        if
        :: who = 0
        :: workers > 1 && session[1].at != IDLE -> who = 1  /* who is idle comes first, and one stands for all */
        :: workers > 2 && session[2].at != IDLE -> who = 2
        fi;
        look();
        step_of_a_worker();
        d_step { judge() }
    }
    :: operator -> atomic { who = OPERATOR; look(); step_of_the_operator(); d_step { judge() } }
    :: atomic { WHERE(IS_ABSENT) != 0 -> enqueue(); d_step { judge() } }
    od
}
