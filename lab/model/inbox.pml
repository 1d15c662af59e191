/* The inbox of fencepost, as spin explores it: consumers take messages in, in the transaction of their effect. The
 * broker delivers any message at any time, any number of times and to several consumers at once, until it is told that
 * it was taken in; and for a while after that, as it may not have heard. That is more than the outbox ever does.
 */

#include "variants.pml"

#define N 3      /* messages */
#define BROKEN(name) (variant == V_##name)

c_decl { \#include <stdlib.h> }

hidden byte I8_one_effect, I8_no_effect_is_lost, I8_nothing_is_left_of_a_rollback;
#define MUST(holds, property) assert(property || (holds))

hidden byte variant;
hidden byte consumers;     /* 1 to 3 */

typedef Message {
    unsigned effects : 2;      /* committed */
    unsigned entered : 1;      /* its row in the inbox, committed */
    unsigned acknowledged : 1;
    unsigned is_over : 1;      /* past the broker's last redelivery */
}
Message message[N];

typedef Consumer {
    unsigned at : 3;
    unsigned id : 2;           /* of the message */
    unsigned entering : 1;     /* inserted, not committed yet: others with the same key wait for that */
    unsigned acts : 1;         /* its effect, not committed yet */
}
#define IDLE 0
#define ACCEPT 1               /* the INSERT ... ON CONFLICT DO NOTHING of inbox_accept.sql comes next */
#define FIND 2                 /* it wrote nothing: inbox_find.sql comes next */
#define ACT 3                  /* accepted: the effect comes next */
#define COMMIT 4
#define ACKNOWLEDGE 5
Consumer consumer[3];
#define ME consumer[who]
#define MINE message[ME.id]

byte who, i;

#define IS_ENTERING(c) (consumer[c].entering && consumer[c].id == ME.id && c != who)
#define SOMEBODY_ENTERS (IS_ENTERING(0) || IS_ENTERING(1) || IS_ENTERING(2))

inline receive(m) {
    d_step {
        ME.id = m;
        ME.at = (BROKEN(look_before_insert) -> FIND : ACCEPT);
        printf("@ consumer %d: message %d is delivered\n", who, m)
    };
    if :: BROKEN(acknowledge_first) -> message[m].acknowledged = 1 :: else fi
}

/* A unique key: who comes second waits for the first one's end. */
inline accept() {
    d_step {
        if
        :: MINE.entered && !BROKEN(look_before_insert) ->
            ME.at = FIND;
            printf("@ consumer %d: message %d was entered before\n", who, ME.id)
        :: SOMEBODY_ENTERS && BROKEN(conflict_is_a_repeat) ->
            ME.at = ACKNOWLEDGE;
            printf("@ consumer %d: somebody enters message %d: taken for a repeat\n", who, ME.id)
        :: else ->
            ME.entering = 1;
            ME.at = ACT;
            printf("@ consumer %d: enters message %d\n", who, ME.id);
            if  /* in a transaction of its own */
            :: BROKEN(accept_commits_alone) -> MINE.entered = 1; ME.entering = 0
            :: else
            fi
        fi
    }
}

inline find() {
    d_step {
        if
        :: MINE.entered -> ME.at = ACKNOWLEDGE; printf("@ consumer %d: finds message %d: a repeat\n", who, ME.id)
        :: else -> ME.at = ACCEPT  /* purged in between */
        fi
    }
}

inline act() {
    d_step {
        ME.acts = 1;
        ME.at = COMMIT;
        printf("@ consumer %d: makes the effect of message %d\n", who, ME.id);
        if :: BROKEN(effect_commits_alone) -> MINE.effects++; ME.acts = 0 :: else fi
    }
}

inline commit() {
    d_step {
        if :: ME.entering -> MINE.entered = 1 :: else fi;
        if :: ME.acts && MINE.effects < 3 -> MINE.effects++ :: else fi;
        ME.entering = 0;
        ME.acts = 0;
        ME.at = ACKNOWLEDGE;
        printf("@ consumer %d: commits message %d\n", who, ME.id)
    }
}

inline acknowledge() {
    d_step {
        MINE.acknowledged = 1;
        printf("@ consumer %d: acknowledges message %d\n", who, ME.id);
        rest()
    }
}

inline rest() {
    ME.at = IDLE;
    ME.id = 0;
    ME.entering = 0;
    ME.acts = 0
}

/* The process is gone, and its transaction rolled back. */
inline crash() {
    d_step {
        printf("@ consumer %d: crashes\n", who);
        if :: BROKEN(rollback_keeps_entry) && ME.entering -> MINE.entered = 1 :: else fi;
        rest()
    }
}

#define HAS_IT(c, m) (consumer[c].at != IDLE && consumer[c].id == m)
#define IN_HAND(m) (HAS_IT(0, m) || HAS_IT(1, m) || HAS_IT(2, m))

/* No more of it comes: it was acknowledged, and its horizon is past. */
inline end_of_redelivery(m) {
    message[m].acknowledged && !message[m].is_over && !IN_HAND(m) -> message[m].is_over = 1
}

/* inbox_purge.sql, with a retention of at least that horizon. */
inline purge(m) {
    message[m].entered && (message[m].is_over || BROKEN(retention_too_short)) ->
        message[m].entered = 0;
        printf("@ purge: forgets message %d\n", m)
}

inline judge() {
    for (i : 0 .. N - 1) {
        MUST(message[i].effects <= 1, I8_one_effect);
        MUST(!message[i].acknowledged || message[i].effects >= 1, I8_no_effect_is_lost);
        MUST(!message[i].entered || message[i].effects >= 1, I8_nothing_is_left_of_a_rollback)
    };
    who = 0;
    i = 0
}

inline configure() {
    c_code {
        int set[2];
        const char *text = getenv("FENCEPOST_MODEL");
        if (!text || sscanf(text, "%d,%d", &set[0], &set[1]) != 2) {
            fprintf(stderr, "FENCEPOST_MODEL is not set as config.py sets it\n");
            exit(2);
        }
        variant = set[0]; consumers = set[1];
    }
}

active proctype world() {
    d_step { configure() }
    do
    :: atomic {
        if
        :: who = 0
        :: consumers > 1 -> who = 1
        :: consumers > 2 -> who = 2
        fi;
        if
        :: ME.at == IDLE && !message[0].is_over -> receive(0)
        :: ME.at == IDLE && !message[1].is_over -> receive(1)
        :: ME.at == IDLE && !message[2].is_over -> receive(2)
        :: ME.at == ACCEPT && (!SOMEBODY_ENTERS || BROKEN(conflict_is_a_repeat) || BROKEN(look_before_insert)) -> accept()
        :: ME.at == FIND -> find()
        :: ME.at == ACT -> act()
        :: ME.at == COMMIT -> commit()
        :: ME.at == ACKNOWLEDGE -> acknowledge()
        :: ME.at != IDLE -> crash()
        :: else
        fi;
        d_step { judge() }
    }
    :: atomic { end_of_redelivery(0); d_step { judge() } }
    :: atomic { end_of_redelivery(1); d_step { judge() } }
    :: atomic { end_of_redelivery(2); d_step { judge() } }
    :: atomic { purge(0); d_step { judge() } }
    :: atomic { purge(1); d_step { judge() } }
    :: atomic { purge(2); d_step { judge() } }
    od
}
