-- Work inside the system, under leases of its own. Unlike the outbox's, a claim is not heap-only here: the indexes tell
-- what is queued from what is leased, so that reclaiming, counting what runs and the report of stuck jobs read what is
-- in flight and nothing else, however long a job runs. Heartbeats, of which a long job has many, are heap-only: no index
-- names a column that they change.
CREATE TABLE {job} (
    id               bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    job_id           uuid        NOT NULL DEFAULT gen_random_uuid(),
    queue            text        NOT NULL DEFAULT 'default' COLLATE "C",
    task             text        NOT NULL COLLATE "C",
    args             json        NOT NULL DEFAULT '{}',
    headers          json        NOT NULL DEFAULT '{}',
    unique_key       text        COLLATE "C",
    -- Jobs of a task that has a limit stand in a lane: the key that the limit is for, empty where it is for all of them.
    lane             text        COLLATE "C",
    recovery_policy  text        NOT NULL DEFAULT 'auto',
    max_attempts     integer     NOT NULL DEFAULT 12,
    created_at       timestamptz NOT NULL DEFAULT statement_timestamp(),
    available_at     timestamptz NOT NULL DEFAULT statement_timestamp(),
    -- From here on the worker's: producers leave these to their defaults.
    status           text        NOT NULL DEFAULT 'queued' COLLATE "C",
    attempts         integer     NOT NULL DEFAULT 0,
    -- New on every claim, and what every write of a holder is fenced by.
    attempt_token    uuid,
    -- Claims so far: rises with each one and never falls, for receivers that refuse an older holder.
    fence            bigint      NOT NULL DEFAULT 0,
    reserved_by      text,
    reserved_at      timestamptz,
    heartbeat_at     timestamptz,
    lease_expires_at timestamptz,
    reclaim_count    integer     NOT NULL DEFAULT 0,
    progress         json,
    last_error       text,
    outcome          text        COLLATE "C",
    result           json,
    finished_at      timestamptz,

    CONSTRAINT {job_pkey} PRIMARY KEY (id),
    CONSTRAINT {job_limits} CHECK (
        octet_length(queue) BETWEEN 1 AND 100
        AND octet_length(task) BETWEEN 1 AND 255
        AND octet_length(unique_key) BETWEEN 1 AND 1024
        AND octet_length(lane) <= 1024
        AND recovery_policy IN ('auto', 'manual', 'verify')
        AND max_attempts BETWEEN 1 AND 1000000
        AND jsonb_typeof(headers::jsonb) = 'object'
        AND NOT headers::jsonb @? 'strict $.* ? (@.type() != "string")'::jsonpath
        AND created_at >= timestamptz '1900-01-01 00:00:00+00'
        AND created_at < timestamptz '9000-01-01 00:00:00+00'
        AND available_at >= timestamptz '1900-01-01 00:00:00+00'
        AND available_at < timestamptz '9000-01-01 00:00:00+00'
        AND attempts BETWEEN 0 AND 1000000000
        AND reclaim_count BETWEEN 0 AND 1000000000
        AND fence BETWEEN 0 AND 4611686018427387904
    ),
    CONSTRAINT {job_state} CHECK (coalesce(
        CASE status
            WHEN 'queued' THEN
                reserved_at IS NULL AND lease_expires_at IS NULL AND outcome IS NULL AND finished_at IS NULL
            WHEN 'processing' THEN
                reserved_at IS NOT NULL AND reserved_by IS NOT NULL AND heartbeat_at IS NOT NULL
                AND lease_expires_at IS NOT NULL AND attempt_token IS NOT NULL AND attempts > 0 AND fence > 0
                AND outcome IS NULL AND finished_at IS NULL
            WHEN 'done' THEN
                reserved_at IS NULL AND lease_expires_at IS NULL AND finished_at IS NOT NULL
                AND outcome = 'completed'
            WHEN 'failed' THEN
                reserved_at IS NULL AND lease_expires_at IS NULL AND finished_at IS NOT NULL
                AND outcome IN ('permanent', 'exhausted', 'crashed', 'expired', 'unknown_outcome', 'cancelled',
                                'failed')
        END,
        false
    ))
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.05
);

CREATE INDEX {job_ready} ON {job} (queue, available_at, id)
    WHERE status = 'queued' AND lane IS NULL AND reclaim_count = 0;

CREATE INDEX {job_lane} ON {job} (queue, task, lane, available_at, id)
    WHERE status = 'queued' AND lane IS NOT NULL AND reclaim_count = 0;

-- What a worker may have crashed on stands apart: it is claimed one by one.
CREATE INDEX {job_suspect} ON {job} (queue, available_at, id) WHERE status = 'queued' AND reclaim_count > 0;

CREATE INDEX {job_leased} ON {job} (id) WHERE status = 'processing';

-- While it is open, a job is the only one of its task with its key.
CREATE UNIQUE INDEX {job_unique} ON {job} (task, unique_key)
    WHERE unique_key IS NOT NULL AND status IN ('queued', 'processing');

CREATE INDEX {job_done} ON {job} (finished_at, id) WHERE status = 'done';

CREATE INDEX {job_failed} ON {job} (finished_at, id) WHERE status = 'failed';

CREATE TABLE {job_audit} (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT statement_timestamp(),
    actor  text        NOT NULL,
    action text        NOT NULL,
    row_id bigint      NOT NULL,
    job_id uuid        NOT NULL,
    reason text,
    before json        NOT NULL
);

-- How far each schedule has come: who enqueues a tick holds the row and moves it on, so that nobody else does.
CREATE TABLE {cron} (
    name       text        NOT NULL COLLATE "C",
    task       text        NOT NULL COLLATE "C",
    expression text        NOT NULL,
    timezone   text        NOT NULL,
    last_tick  timestamptz NOT NULL,
    -- When a worker that declares it just so was last alive: behind that, a worker that declares it otherwise may
    -- put its own in this place.
    seen_at    timestamptz NOT NULL,

    CONSTRAINT {cron_pkey} PRIMARY KEY (name)
);

COMMENT ON TABLE {job} IS 'fencepost: work to be done inside the system';
COMMENT ON TABLE {job_audit} IS 'fencepost: what operators did to jobs, with the state before';
COMMENT ON TABLE {cron} IS 'fencepost: the last tick of each schedule that was enqueued';
