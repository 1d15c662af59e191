-- The outbox, shaped so that claims and heartbeats are heap-only updates: no index and no index predicate
-- names a column that they change (status, attempts, lease_*). A ready row is told by done_at IS NULL, a
-- leased one by lease_until, a parked or dead one by its place at the far end of available_at.
CREATE TABLE {outbox} (
    id              bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    message_id      uuid        NOT NULL DEFAULT gen_random_uuid(),
    queue           text        NOT NULL DEFAULT 'default' COLLATE "C",
    aggregate_type  text        COLLATE "C",
    aggregate_id    text        COLLATE "C",
    event_type      text        NOT NULL COLLATE "C",
    ordering_key    text        COLLATE "C",
    payload         json,
    payload_bytes   bytea,
    content_type    text,
    headers         json        NOT NULL DEFAULT '{}',
    dedupe_key      text        COLLATE "C",
    recovery_policy text        NOT NULL DEFAULT 'auto',
    created_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    available_at    timestamptz NOT NULL DEFAULT statement_timestamp(),
    -- From here on the dispatcher's: producers leave these to their defaults.
    status          text        NOT NULL DEFAULT 'pending' COLLATE "C",
    attempts        integer     NOT NULL DEFAULT 0,
    lease_owner     text,
    lease_until     timestamptz,
    lease_version   bigint      NOT NULL DEFAULT 0,
    reclaim_count   integer     NOT NULL DEFAULT 0,
    last_error      text,
    outcome         text        COLLATE "C",
    done_at         timestamptz,
    dead_at         timestamptz,

    CONSTRAINT {pkey} PRIMARY KEY (id),
    CONSTRAINT {shape} CHECK (
        (payload IS NULL) <> (payload_bytes IS NULL)
        AND jsonb_typeof(headers::jsonb) = 'object'
        AND NOT headers::jsonb @? 'strict $.* ? (@.type() != "string")'::jsonpath
        AND recovery_policy IN ('auto', 'manual')
    ),
    CONSTRAINT {limits} CHECK (
        octet_length(queue) BETWEEN 1 AND 100
        AND octet_length(event_type) BETWEEN 1 AND 255
        AND octet_length(aggregate_type) <= 255
        AND octet_length(aggregate_id) <= 1024
        AND octet_length(dedupe_key) BETWEEN 1 AND 1024
        AND octet_length(content_type) BETWEEN 1 AND 255
        AND created_at >= timestamptz '1900-01-01 00:00:00+00'
        AND created_at < timestamptz '9000-01-01 00:00:00+00'
        AND available_at >= timestamptz '1900-01-01 00:00:00+00'
        AND (available_at < timestamptz '9000-01-01 00:00:00+00' OR available_at = {far})
        -- So far from the ends of their types that no claim overflows: one odd row must not fail a whole batch.
        AND attempts BETWEEN 0 AND 1000000000
        AND reclaim_count BETWEEN 0 AND 1000000000
        AND lease_version BETWEEN 0 AND 4611686018427387904
    ),
    -- This version dispatches unordered messages only; accepting a key without keeping its order would be a lie.
    CONSTRAINT {unordered} CHECK (ordering_key IS NULL),
    CONSTRAINT {state} CHECK (coalesce(
        CASE status
            WHEN 'pending' THEN
                lease_until IS NULL AND outcome IS NULL AND done_at IS NULL AND dead_at IS NULL
                AND available_at < {far}
            WHEN 'processing' THEN
                lease_until IS NOT NULL AND lease_owner IS NOT NULL AND lease_version > 0 AND attempts > 0
                AND outcome IS NULL AND done_at IS NULL AND dead_at IS NULL AND available_at < {far}
            WHEN 'blocked' THEN
                lease_until IS NULL AND outcome IS NULL AND done_at IS NULL AND dead_at IS NULL
                AND available_at = {far} AND ordering_key IS NOT NULL
            WHEN 'done' THEN
                lease_until IS NULL AND done_at IS NOT NULL AND outcome IN ('delivered', 'skipped')
            WHEN 'dead' THEN
                lease_until IS NULL AND done_at IS NULL AND dead_at IS NOT NULL AND available_at = {far}
                AND outcome IN ('permanent', 'exhausted', 'crashed', 'expired', 'unroutable', 'unknown_outcome')
        END,
        false
    ))
) WITH (
    -- More than half of each page stays free for the heap-only versions that claim and heartbeat write, since
    -- a claimed version is larger than a pending one by the owner's name and the lease. Measured with a name
    -- of 34 characters: at 50, 6 to 14 of 100 claims of small messages left their page, with a tenth more WAL.
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.05
);

CREATE INDEX {ready} ON {outbox} (queue, available_at, id) WHERE done_at IS NULL;

CREATE UNIQUE INDEX {dedupe} ON {outbox} (queue, dedupe_key) WHERE dedupe_key IS NOT NULL;

CREATE TABLE {audit} (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT statement_timestamp(),
    actor      text        NOT NULL,
    action     text        NOT NULL,
    outbox_id  bigint      NOT NULL,
    message_id uuid        NOT NULL,
    reason     text,
    before     json        NOT NULL
);

COMMENT ON TABLE {outbox} IS 'fencepost: events that committed and must be told to the outside world';
COMMENT ON TABLE {audit} IS 'fencepost: what operators did to messages, with the state before';
