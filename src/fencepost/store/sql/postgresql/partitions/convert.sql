-- The outbox as it is, but in partitions by id. The table is empty, and locked.
ALTER TABLE {outbox} RENAME TO {flat};

CREATE TABLE {outbox} (LIKE {schema}.{flat} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING COMMENTS)
PARTITION BY RANGE (id);

DROP TABLE {schema}.{flat};

-- Not an identity: partitioned tables can have one from PostgreSQL 17 on only.
CREATE SEQUENCE {sequence} AS bigint START WITH {first} CACHE 1 OWNED BY {outbox}.id;

ALTER TABLE {outbox} ALTER id SET DEFAULT nextval('{sequence}'::regclass);

ALTER TABLE {outbox} ADD CONSTRAINT {pkey} PRIMARY KEY (id);

CREATE INDEX {ready} ON {outbox} (queue, available_at, id) WHERE done_at IS NULL;

CREATE INDEX {order} ON {outbox} (queue, ordering_key, id) WHERE done_at IS NULL AND ordering_key IS NOT NULL;

-- A unique index cannot span partitions unless it has the id, which is unique anyway.
ALTER TABLE {outbox} ADD CONSTRAINT {no_dedupe} CHECK (dedupe_key IS NULL);

COMMENT ON TABLE {outbox} IS 'fencepost: events that committed and must be told to the outside world, by ranges of id';

-- For what runs ahead of the partitions: an INSERT must never fail for want of one.
CREATE TABLE {default} PARTITION OF {outbox} DEFAULT
{partition_storage};
