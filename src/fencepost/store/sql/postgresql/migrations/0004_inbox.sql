-- What consumers have taken in, each in the transaction of its effect.
CREATE TABLE {inbox} (
    consumer    text        NOT NULL COLLATE "C",
    message_id  text        NOT NULL COLLATE "C",
    fence       bigint,
    digest      bytea,
    accepted_at timestamptz NOT NULL DEFAULT statement_timestamp(),

    CONSTRAINT {inbox_pkey} PRIMARY KEY (consumer, message_id),
    CONSTRAINT {inbox_limits} CHECK (
        octet_length(consumer) BETWEEN 1 AND 100
        AND octet_length(message_id) BETWEEN 1 AND 512
        AND fence >= 0
        AND octet_length(digest) = 32
    )
);

-- For the purge, which goes from the oldest on.
CREATE INDEX {inbox_age} ON {inbox} (consumer, accepted_at);

-- One row for each key of a consumer that takes numbered messages: the last number.
CREATE TABLE {inbox_key} (
    consumer      text        NOT NULL COLLATE "C",
    key           text        NOT NULL COLLATE "C",
    last_sequence bigint      NOT NULL,
    accepted_at   timestamptz NOT NULL DEFAULT statement_timestamp(),

    CONSTRAINT {inbox_key_pkey} PRIMARY KEY (consumer, key),
    CONSTRAINT {inbox_number} CHECK (
        octet_length(consumer) BETWEEN 1 AND 100
        AND octet_length(key) BETWEEN 1 AND 2048
        AND last_sequence > 0
    )
) WITH (fillfactor = 50);

COMMENT ON TABLE {inbox} IS 'fencepost: messages whose effect is there, by consumer';
COMMENT ON TABLE {inbox_key} IS 'fencepost: how far each consumer has come in each key';
