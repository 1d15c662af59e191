-- Ordering keys, and what all workers of a queue agree on.
ALTER TABLE {outbox} DROP CONSTRAINT {unordered};

ALTER TABLE {outbox} ADD COLUMN key_sequence bigint;

ALTER TABLE {outbox} ADD CONSTRAINT {order_check} CHECK (
    octet_length(ordering_key) BETWEEN 1 AND 2048
    AND (key_sequence IS NULL OR (ordering_key IS NOT NULL AND key_sequence > 0))
);

-- The open messages of a key in their order. Like the ready index it names no column that a claim or a
-- heartbeat changes.
CREATE INDEX {order} ON {outbox} (queue, ordering_key, id) WHERE done_at IS NULL AND ordering_key IS NOT NULL;

CREATE TABLE {queue} (
    queue                   text             NOT NULL COLLATE "C",
    paused                  boolean          NOT NULL DEFAULT false,
    weight                  integer          NOT NULL DEFAULT 1,
    concurrency             integer,
    lease_seconds           double precision,
    publish_timeout_seconds double precision,
    max_attempts            integer,
    backoff_base_seconds    double precision,
    backoff_cap_seconds     double precision,
    sequenced               boolean          NOT NULL DEFAULT false,
    changed_at              timestamptz      NOT NULL DEFAULT statement_timestamp(),
    changed_by              text,

    CONSTRAINT {queue_pkey} PRIMARY KEY (queue),
    CONSTRAINT {queue_limits} CHECK (
        octet_length(queue) BETWEEN 1 AND 100
        AND weight BETWEEN 1 AND 1000
        AND concurrency BETWEEN 1 AND 10000
        AND lease_seconds BETWEEN 0.1::float8 AND 86400::float8
        AND publish_timeout_seconds > 0::float8 AND publish_timeout_seconds <= 86400::float8
        AND max_attempts BETWEEN 1 AND 1000000
        AND backoff_base_seconds > 0::float8 AND backoff_base_seconds <= 31536000::float8
        AND backoff_cap_seconds > 0::float8 AND backoff_cap_seconds <= 31536000::float8
    )
);

-- The last number of each key, in the queues that count the messages of a key without a gap.
CREATE TABLE {key} (
    queue         text   NOT NULL COLLATE "C",
    ordering_key  text   NOT NULL COLLATE "C",
    last_sequence bigint NOT NULL,

    CONSTRAINT {key_pkey} PRIMARY KEY (queue, ordering_key)
);

COMMENT ON TABLE {queue} IS 'fencepost: what all workers of a queue agree on; without a row, their own settings hold';
COMMENT ON TABLE {key} IS 'fencepost: the last number of each ordering key, in queues that are sequenced';
