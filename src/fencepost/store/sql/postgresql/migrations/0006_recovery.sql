-- What is done about an attempt whose outcome nobody knows: a third policy, and a ledger of attempts.
-- (The new constraint allows what the old one allowed and more: no row needs to be looked at again.)
ALTER TABLE {outbox} DROP CONSTRAINT {shape};

ALTER TABLE {outbox} ADD CONSTRAINT {shape} CHECK (
    (payload IS NULL) <> (payload_bytes IS NULL)
    AND jsonb_typeof(headers::jsonb) = 'object'
    AND NOT headers::jsonb @? 'strict $.* ? (@.type() != "string")'::jsonpath
    AND recovery_policy IN ('auto', 'manual', 'verify')
) NOT VALID;

ALTER TABLE {queue} ADD COLUMN ledger boolean NOT NULL DEFAULT false;

-- Every attempt at a message or a job, in queues that keep a ledger. Its end is written by whoever made it: one that
-- has none is under way while its row is held under its token, and lost otherwise.
CREATE TABLE {attempt} (
    id         bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    kind       text        NOT NULL COLLATE "C",
    row_id     bigint      NOT NULL,
    token      text        NOT NULL COLLATE "C",
    queue      text        NOT NULL COLLATE "C",
    attempt    integer     NOT NULL,
    worker     text        NOT NULL,
    started_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    ended_at   timestamptz,
    result     text        COLLATE "C",
    error      text,
    -- When its end was written, the row was no longer its own.
    lease_lost boolean     NOT NULL DEFAULT false,

    CONSTRAINT {attempt_pkey} PRIMARY KEY (id),
    CONSTRAINT {attempt_shape} CHECK (
        kind IN ('message', 'job') AND (ended_at IS NULL) = (result IS NULL)
    )
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX {attempt_row} ON {attempt} (kind, row_id, token);

COMMENT ON TABLE {attempt} IS 'fencepost: attempts at messages and jobs, in queues that keep a ledger';
