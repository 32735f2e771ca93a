"""PostgreSQL: functions that do in one round trip what took one for each statement. SQLite has no round trips.

Each statement of such a function sees what was committed before that statement, as in a transaction of its own
statements.
"""

from alembic import op

revision = "0003"
down_revision = "0002"

COUNT = """
CREATE FUNCTION broker_count(place bigint, added_messages bigint, added_bytes bigint, folded bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    added bigint;
BEGIN
    INSERT INTO broker_tally (destination, messages, bytes) VALUES (place, added_messages, added_bytes)
        RETURNING id INTO added;
    -- Scattered by a hash: if two destinations are used by turns, one of them gets only odd ids.
    IF mod(hashint8(added) & 2147483647, folded) = 0 THEN
        -- Another transaction may fold at the same time: each row belongs to one of them.
        WITH gone AS (
            DELETE FROM broker_tally WHERE id IN (
                SELECT id FROM broker_tally WHERE destination = place AND id <= added FOR UPDATE SKIP LOCKED
            ) RETURNING messages, bytes, changes
        )
        INSERT INTO broker_tally (destination, messages, bytes, changes)
            SELECT place, sum(messages), sum(bytes), sum(changes) FROM gone HAVING count(*) > 0;
    END IF;
END $$
"""
LEAVE = """
CREATE FUNCTION broker_leave(
    place bigint, reader bigint, holder bigint, their_state bigint, numbers bigint[], folded bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    found_rows bigint;
    freed bigint;
BEGIN
    PERFORM 1 FROM broker_delivery WHERE subscription = reader AND number = ANY(numbers)
        AND state = their_state AND consumer = holder FOR UPDATE;
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    IF found_rows <> cardinality(numbers) THEN
        RETURN false;
    END IF;
    DELETE FROM broker_delivery WHERE subscription = reader AND number = ANY(numbers);
    WITH gone AS (DELETE FROM broker_content WHERE number = ANY(numbers) RETURNING length(content) AS size)
        SELECT sum(size) INTO freed FROM gone;
    PERFORM broker_count(place, -found_rows, -freed, folded);
    RETURN true;
END $$
"""
SEND = """
CREATE FUNCTION broker_send(
    queue text, new_id text, body bytea, new_rank bigint, kept bigint, age bigint, lives bigint, delay bigint,
    lazy boolean, folded bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    there record;
    reader bigint;
    rivals bigint;
    held record;
    began bigint;
    new_number bigint;
BEGIN
    PERFORM pg_current_xact_id(), pg_advisory_xact_lock_shared(
        hashtextextended(concat('correlator broker ', current_schema(), ' ', queue), 2)
    );
    IF lazy THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    SELECT * INTO there FROM broker_destination WHERE name = queue AND client IS NULL
        AND (paused IS NULL OR paused = 'CONSUMERS');
    SELECT id INTO reader FROM broker_subscription WHERE destination = there.id;
    IF reader IS NULL THEN
        RETURN false;
    END IF;
    IF there.max_num_msgs > 0 OR there.max_total_msg_bytes > 0 THEN
        rivals := current_setting('max_connections');
        SELECT coalesce(sum(messages), 0) AS messages, coalesce(sum(bytes), 0) AS bytes INTO held
            FROM broker_tally WHERE destination = there.id;
        IF there.max_num_msgs > 0 AND 2 * greatest(rivals, held.messages) > there.max_num_msgs
            OR there.max_total_msg_bytes > 0
                AND 2 * greatest(rivals * length(body), held.bytes) > there.max_total_msg_bytes
        THEN
            RETURN false;
        END IF;
    END IF;
    IF there.max_per_msg_bytes > 0 AND length(body) > there.max_per_msg_bytes THEN
        RETURN false;
    END IF;
    new_number := nextval('broker_number');
    began := CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) - age;
    INSERT INTO broker_content (number, destination, message_id, sent_at, persistent, refs_left, content)
        VALUES (new_number, there.id, new_id, began, kept, 1, body);
    INSERT INTO broker_delivery
        (subscription, number, rank, state, consumer, deliveries, suspect, due, expires, size)
        VALUES (reader, new_number, new_rank, CASE WHEN delay > 0 THEN 2 ELSE 0 END, 0, 0, 0,
            CASE WHEN delay > 0 THEN began + delay ELSE 0 END, CASE WHEN lives > 0 THEN began + lives ELSE 0 END,
            length(body));
    PERFORM broker_count(there.id, 1, length(body), folded);
    RETURN true;
END $$
"""


def upgrade() -> None:
    """Make the functions."""
    if op.get_bind().dialect.name == "postgresql":
        for function in (COUNT, LEAVE, SEND):
            op.get_bind().exec_driver_sql(function)
