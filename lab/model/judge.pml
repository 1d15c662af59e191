/* After each step: what must hold of every state and of every change; then states that differ in nothing that can
 * matter are made equal, and the workers, of which one is like another, are sorted.
 */

inline configure() {
    c_code {
        int set[11];
        const char *text = getenv("FENCEPOST_MODEL");
        if (!text || sscanf(text, "%d,%d,%1d%1d%1d,%d,%d,%d,%d,%d,%d", &set[0], &set[1], &set[2], &set[3], &set[4],
                            &set[5], &set[6], &set[7], &set[8], &set[9], &set[10]) != 11) {
            fprintf(stderr, "FENCEPOST_MODEL is not set as config.py sets it\n");
            exit(2);
        }
        variant = set[0]; workers = set[1]; limit = set[5]; manual = set[6]; operator = set[7];
        answers_lost = set[8]; enqueues = set[9]; fine = set[10];
        key[0] = set[2]; key[1] = set[3]; key[2] = set[4];
    };
    for (i : 0 .. N - 1) {
        for (j : 0 .. N - 1) {
            if :: key[i] == key[j] && j < i -> earlier[i] = earlier[i] | BIT(j) :: else fi;
            if :: key[i] == key[j] && j > i -> later[i] = later[i] | BIT(j) :: else fi;
            if :: key[i] == key[j] -> mates[i] = mates[i] | BIT(j) :: else fi
        };
        row[i].status = (enqueues -> absent : pending)
    };
    for (i : 0 .. OPERATOR) { name[i] = i + 1 };
    i = 0;
    j = 0
}

#define TAKES(e) (e == claim || e == reclaim || e == claim_over_the_limit || e == reap_crashed || e == reap_unknown \
                  || e == operator_retry || e == operator_skip)
#define CLAIMS_CAN_TAKE(m) (row[m].status == pending || (row[m].status == processing && !HAS(manual, m) && row[m].attempts < limit))

inline judge() {
    open = WHERE(OPEN);
    for (i : 0 .. N - 1) {
        if
        :: change[i].event != 0 ->
            printf("@   message %d: event %d\n", i, change[i].event);
            MUST(variant != SOUGHT + change[i].event, it_happens);
            MUST(change[i].before != done, I12_terminal);
            MUST(change[i].before != dead || change[i].event == operator_retry || change[i].event == operator_skip,
                 I12_terminal);
            MUST(!TAKES(change[i].event) || change[i].raised, I9_tokens_rise);
            MUST(row[i].attempts <= limit, I7_attempts_in_bounds);
            MUST(row[i].charged <= limit, I3_attempts_are_charged);
            MUST(variant != 0 || ALLOWED(change[i].before, change[i].event, row[i].status, change[i].attempts,
                                         row[i].attempts, change[i].raised), as_the_table_says)
        :: else
        fi;
        MUST(!(row[i].status == blocked && (open & earlier[i]) == 0), I1_nothing_sleeps);
        MUST(!IS_HEAD(open, i) || row[i].status == dead || CLAIMS_CAN_TAKE(i) || IS_TO_BURY(i),
             I10_somebody_can_take_it);
        change[i].event = 0;
        change[i].before = 0;
        change[i].attempts = 0;
        change[i].raised = 0
    };
    printf("@   = state %d %d/%d, state %d %d/%d, state %d %d/%d\n", row[0].status, row[0].attempts, real_token[0],
           row[1].status, row[1].attempts, real_token[1], row[2].status, row[2].attempts, real_token[2]);
    for (i : 0 .. N - 1) {
        if
        :: row[i].status == done || row[i].status == dead ->
            row[i].attempts = 0;
            row[i].charged = 0;
            row[i].reclaimed = 0
        :: else
        fi;
        /* Whether it was accepted matters to those behind it, until it is done. */
        if :: row[i].status == done || later[i] == 0 -> row[i].accepted = 0 :: else fi;
        /* How it ended matters to who may ask whether that was his work. */
        if
        :: !HAS(session[0].held | session[1].held | session[2].held, i) -> row[i].outcome = 0
        :: else
        fi
    };
    sort();
    who = 0;
    open = 0;
    locked = 0;
    set = 0;
    chosen = 0;
    i = 0;
    j = 0
}

inline sort() {
    c_code {
        int order[] = {0, 1, 0};
        int n;
        for (n = 0; n < (workers < 3 ? workers - 1 : 3); n++) {
            struct Session *one = &now.session[order[n]], *next = one + 1, kept;
            if (memcmp(one, next, sizeof kept) > 0) {
                uchar called = name[order[n]];
                kept = *one; *one = *next; *next = kept;
                name[order[n]] = name[order[n] + 1]; name[order[n] + 1] = called;
            }
        }
    }
}
