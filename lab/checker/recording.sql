-- What a run under the checker's eyes writes besides: tables of the lab, and triggers that keep every committed change.
-- They write in the change's own transaction: what was rolled back leaves nothing here either. {outbox}, {job} and
-- {queue} are the tables' quoted names. Instants are microseconds since 1970.
CREATE SCHEMA IF NOT EXISTS lab;

CREATE OR REPLACE FUNCTION lab.micros(at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$body$ SELECT (extract(epoch FROM at) * 1000000::numeric)::bigint $body$;

-- A row stands here where the business change of a message's transaction (and savepoint) committed.
CREATE TABLE IF NOT EXISTS lab.business (
    message_id   uuid PRIMARY KEY,
    ordering_key text,
    number       bigint,
    txid         bigint NOT NULL DEFAULT pg_catalog.pg_current_xact_id()::text::bigint
);

CREATE TABLE IF NOT EXISTS lab.job_business (
    job_id uuid PRIMARY KEY,
    txid   bigint NOT NULL DEFAULT pg_catalog.pg_current_xact_id()::text::bigint
);

-- What a consumer did; without a unique key, so that a second effect would show.
CREATE TABLE IF NOT EXISTS lab.effect (
    n          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer   text NOT NULL,
    message_id text NOT NULL,
    token      bigint
);

-- "n" orders the changes of one row, and those of rows that lock each other out: it is drawn while the row is
-- locked. "statement_at" is the instant that fencepost's own statements reckon with.
CREATE TABLE IF NOT EXISTS lab.message_history (
    n            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           bigint NOT NULL DEFAULT lab.micros(pg_catalog.clock_timestamp()),
    statement_at bigint NOT NULL DEFAULT lab.micros(pg_catalog.statement_timestamp()),
    txid         bigint NOT NULL DEFAULT pg_catalog.pg_current_xact_id()::text::bigint,
    backend      integer NOT NULL DEFAULT pg_catalog.pg_backend_pid(),
    application  text NOT NULL DEFAULT pg_catalog.current_setting('application_name'),
    op           text NOT NULL,
    id           bigint,
    old          jsonb,
    new          jsonb,
    -- What is delivered: at the insert the digest of its payload, later whether anything of it was changed.
    payload      text,
    is_altered   boolean NOT NULL DEFAULT false
);
CREATE TABLE IF NOT EXISTS lab.job_history (LIKE lab.message_history INCLUDING ALL);

CREATE TABLE IF NOT EXISTS lab.queue_history (
    n            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           bigint NOT NULL DEFAULT lab.micros(pg_catalog.clock_timestamp()),
    queue        text NOT NULL,
    paused       boolean NOT NULL,
    breaker_open boolean NOT NULL,
    rated        boolean NOT NULL,
    max_attempts integer
);

CREATE OR REPLACE FUNCTION lab.message_state(o {outbox}) RETURNS jsonb LANGUAGE sql STABLE AS $body$
    SELECT pg_catalog.jsonb_build_object(
        'message_id', o.message_id, 'queue', o.queue, 'key', o.ordering_key, 'recovery', o.recovery_policy,
        'status', o.status, 'attempts', o.attempts, 'token', o.lease_version, 'owner', o.lease_owner,
        'lease_until', lab.micros(o.lease_until), 'reclaims', o.reclaim_count, 'outcome', o.outcome,
        'available_at', lab.micros(o.available_at), 'created_at', lab.micros(o.created_at),
        'done_at', lab.micros(o.done_at), 'dead_at', lab.micros(o.dead_at))
$body$;

CREATE OR REPLACE FUNCTION lab.job_state(o {job}) RETURNS jsonb LANGUAGE sql STABLE AS $body$
    SELECT pg_catalog.jsonb_build_object(
        'job_id', o.job_id, 'queue', o.queue, 'task', o.task, 'lane', o.lane, 'recovery', o.recovery_policy,
        'max_attempts', o.max_attempts, 'status', o.status, 'attempts', o.attempts, 'fence', o.fence,
        'token', o.attempt_token, 'owner', o.reserved_by, 'lease_until', lab.micros(o.lease_expires_at),
        'reclaims', o.reclaim_count, 'outcome', o.outcome, 'available_at', lab.micros(o.available_at),
        'finished_at', lab.micros(o.finished_at))
$body$;

CREATE OR REPLACE FUNCTION lab.record_message() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO lab.message_history (op, id, new, payload)
        VALUES (TG_OP, NEW.id, lab.message_state(NEW), pg_catalog.encode(pg_catalog.sha256(
            coalesce(NEW.payload_bytes, pg_catalog.convert_to(NEW.payload::text, 'UTF8'))), 'hex'));
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO lab.message_history (op, id, old, new, is_altered)
        VALUES (TG_OP, OLD.id, lab.message_state(OLD), lab.message_state(NEW),
            (NEW.id, NEW.message_id, NEW.queue, NEW.ordering_key, NEW.recovery_policy, NEW.created_at, NEW.event_type,
             NEW.content_type, NEW.payload_bytes, NEW.payload::text, NEW.headers::text)
            IS DISTINCT FROM
            (OLD.id, OLD.message_id, OLD.queue, OLD.ordering_key, OLD.recovery_policy, OLD.created_at, OLD.event_type,
             OLD.content_type, OLD.payload_bytes, OLD.payload::text, OLD.headers::text));
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO lab.message_history (op, id, old) VALUES (TG_OP, OLD.id, lab.message_state(OLD));
    ELSE
        INSERT INTO lab.message_history (op) VALUES (TG_OP);
    END IF;
    RETURN NULL;
END
$body$;

CREATE OR REPLACE FUNCTION lab.record_job() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO lab.job_history (op, id, new) VALUES (TG_OP, NEW.id, lab.job_state(NEW));
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO lab.job_history (op, id, old, new) VALUES (TG_OP, OLD.id, lab.job_state(OLD), lab.job_state(NEW));
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO lab.job_history (op, id, old) VALUES (TG_OP, OLD.id, lab.job_state(OLD));
    ELSE
        INSERT INTO lab.job_history (op) VALUES (TG_OP);
    END IF;
    RETURN NULL;
END
$body$;

CREATE OR REPLACE FUNCTION lab.record_queue() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    -- Workers count the failures of a breaker and spend a rate in the same row: that is no new setting.
    IF TG_OP = 'UPDATE' AND (NEW.paused, NEW.breaker_opened_at IS NULL, NEW.rate_per_second IS NULL, NEW.max_attempts)
        IS NOT DISTINCT FROM (OLD.paused, OLD.breaker_opened_at IS NULL, OLD.rate_per_second IS NULL, OLD.max_attempts)
    THEN
        RETURN NULL;
    END IF;
    INSERT INTO lab.queue_history (queue, paused, breaker_open, rated, max_attempts)
    VALUES (NEW.queue, NEW.paused, NEW.breaker_opened_at IS NOT NULL, NEW.rate_per_second IS NOT NULL, NEW.max_attempts);
    RETURN NULL;
END
$body$;

CREATE OR REPLACE TRIGGER lab_record AFTER INSERT OR UPDATE OR DELETE ON {outbox}
    FOR EACH ROW EXECUTE FUNCTION lab.record_message();
CREATE OR REPLACE TRIGGER lab_record_truncate AFTER TRUNCATE ON {outbox}
    FOR EACH STATEMENT EXECUTE FUNCTION lab.record_message();
CREATE OR REPLACE TRIGGER lab_record AFTER INSERT OR UPDATE OR DELETE ON {job}
    FOR EACH ROW EXECUTE FUNCTION lab.record_job();
CREATE OR REPLACE TRIGGER lab_record_truncate AFTER TRUNCATE ON {job}
    FOR EACH STATEMENT EXECUTE FUNCTION lab.record_job();
CREATE OR REPLACE TRIGGER lab_record AFTER INSERT OR UPDATE ON {queue}
    FOR EACH ROW EXECUTE FUNCTION lab.record_queue();
