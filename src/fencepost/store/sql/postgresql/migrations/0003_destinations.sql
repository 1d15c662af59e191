-- Messages that go to several destinations, and what all workers of a destination share: its breaker and its rate.
ALTER TABLE {outbox} DROP CONSTRAINT {state};

-- It was made for the destination whose queue it stands in, and is never routed again.
ALTER TABLE {outbox} ADD COLUMN routed boolean NOT NULL DEFAULT false;

ALTER TABLE {outbox} ADD CONSTRAINT {state} CHECK (coalesce(
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
            lease_until IS NULL AND done_at IS NOT NULL AND outcome IN ('delivered', 'skipped', 'expanded')
        WHEN 'dead' THEN
            lease_until IS NULL AND done_at IS NULL AND dead_at IS NOT NULL AND available_at = {far}
            AND outcome IN ('permanent', 'exhausted', 'crashed', 'expired', 'unroutable', 'unknown_outcome')
    END,
    false
));

ALTER TABLE {queue}
    ADD COLUMN pause_reason        text,
    ADD COLUMN rate_per_second     double precision,
    ADD COLUMN breaker_failures    integer,
    ADD COLUMN breaker_cap_seconds double precision,
    -- From here on the workers' own: what was taken of the rate, and the breaker while it is open.
    ADD COLUMN rate_spent_until    timestamptz,
    ADD COLUMN breaker_seen        integer NOT NULL DEFAULT 0,
    ADD COLUMN breaker_version     bigint  NOT NULL DEFAULT 0,
    ADD COLUMN breaker_opened_at   timestamptz,
    ADD COLUMN breaker_probe_at    timestamptz,
    ADD COLUMN breaker_trips       integer NOT NULL DEFAULT 0,
    ADD COLUMN breaker_error       text,
    ADD CONSTRAINT {queue_shared} CHECK (
        rate_per_second >= 0.001::float8 AND rate_per_second <= 1000000::float8
        AND breaker_failures BETWEEN 0 AND 1000000
        AND breaker_cap_seconds > 0::float8 AND breaker_cap_seconds <= 86400::float8
        AND breaker_seen BETWEEN 0 AND 1000000000
        AND breaker_trips BETWEEN 0 AND 1000000000
        AND (breaker_opened_at IS NULL) = (breaker_probe_at IS NULL)
    );
