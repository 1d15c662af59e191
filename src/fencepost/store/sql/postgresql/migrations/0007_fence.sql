-- The newest fencing token that a receiver has seen of each resource, in the receiver's own database.
CREATE TABLE {fence} (
    receiver    text        NOT NULL COLLATE "C",
    resource    text        NOT NULL COLLATE "C",
    token       bigint      NOT NULL,
    admitted_at timestamptz NOT NULL DEFAULT statement_timestamp(),

    CONSTRAINT {fence_pkey} PRIMARY KEY (receiver, resource),
    CONSTRAINT {fence_limits} CHECK (
        octet_length(receiver) BETWEEN 1 AND 100
        AND octet_length(resource) BETWEEN 1 AND 2048
        AND token >= 0
    )
);

-- For the purge, which goes from the oldest on.
CREATE INDEX {fence_age} ON {fence} (receiver, admitted_at);

COMMENT ON TABLE {fence} IS 'fencepost: the newest fencing token that receivers have seen of each resource';
