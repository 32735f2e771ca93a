"""PostgreSQL: `broker_send` and `broker_leave` add to the tally by themselves, without a call of `broker_count`.

Such a call takes as long as the statement in it. `broker_fold` is what `broker_count` does for one of `folded` calls.
"""

from alembic import op

revision = "0007"
down_revision = "0006"

FOLD = """
CREATE FUNCTION broker_fold(place bigint, last bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    -- Another transaction may fold at the same time: each row belongs to one of them.
    WITH gone AS (
        DELETE FROM broker_tally WHERE id IN (
            SELECT id FROM broker_tally WHERE destination = place AND id <= last FOR UPDATE SKIP LOCKED
        ) RETURNING messages, bytes, changes
    )
    INSERT INTO broker_tally (destination, messages, bytes, changes)
        SELECT place, sum(messages), sum(bytes), sum(changes) FROM gone HAVING count(*) > 0;
END $$
"""
COUNT = """
CREATE OR REPLACE FUNCTION broker_count(place bigint, added_messages bigint, added_bytes bigint, folded bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    added bigint;
BEGIN
    INSERT INTO broker_tally (destination, messages, bytes) VALUES (place, added_messages, added_bytes)
        RETURNING id INTO added;
    -- Scattered by a hash: if two destinations are used by turns, one of them gets only odd ids.
    IF mod(hashint8(added) & 2147483647, folded) = 0 THEN
        PERFORM broker_fold(place, added);
    END IF;
END $$
"""
LEAVE = """
CREATE OR REPLACE FUNCTION broker_leave(
    place bigint, reader bigint, holder bigint, their_state bigint, numbers bigint[], folded bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    lowest bigint;
    highest bigint;
    places tid[];
    freed bigint;
    added bigint;
BEGIN
    IF cardinality(numbers) = 1 THEN
        lowest := numbers[1];
        -- The sum keeps the server from reading all messages of the consumer by their index.
        DELETE FROM broker_delivery WHERE subscription = reader AND number = lowest
            AND state = their_state AND consumer + 0 = holder;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        DELETE FROM broker_content WHERE number = lowest RETURNING length(content) INTO freed;
    ELSE
        SELECT min(n), max(n) INTO lowest, highest FROM unnest(numbers) AS n;
        SELECT array_agg(locked.ctid) INTO places FROM (
            SELECT ctid FROM broker_delivery WHERE subscription = reader AND number = ANY(numbers)
                AND number BETWEEN lowest AND highest AND state = their_state AND consumer = holder FOR UPDATE
        ) AS locked;
        IF coalesce(cardinality(places), 0) <> cardinality(numbers) THEN
            RETURN false;
        END IF;
        DELETE FROM broker_delivery WHERE ctid = ANY(places);
        WITH gone AS (DELETE FROM broker_content WHERE number = ANY(numbers) RETURNING length(content) AS size)
            SELECT sum(size) INTO freed FROM gone;
    END IF;
    INSERT INTO broker_tally (destination, messages, bytes) VALUES (place, -cardinality(numbers), -freed)
        RETURNING id INTO added;
    IF mod(hashint8(added) & 2147483647, folded) = 0 THEN
        PERFORM broker_fold(place, added);
    END IF;
    RETURN true;
END $$
"""
SEND = """
CREATE OR REPLACE FUNCTION broker_send(
    queue text, new_id text, body bytea, new_rank bigint, kept bigint, age bigint, lives bigint, delay bigint,
    lazy boolean, folded bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    place bigint;
    reader bigint;
    most bigint;
    most_bytes bigint;
    largest bigint;
    rivals bigint;
    held record;
    began bigint;
    new_number bigint;
    size bigint := length(body);
    added bigint;
    done boolean;
BEGIN
    -- In this order: see the statement that takes numbers for several messages.
    done := pg_current_xact_id() IS NOT NULL;
    done := pg_advisory_xact_lock_shared(
        hashtextextended(concat('correlator broker ', current_schema(), ' ', queue), 2)
    ) IS NOT NULL;
    IF lazy THEN
        done := set_config('synchronous_commit', 'off', true) IS NOT NULL;
    END IF;
    SELECT n.id, s.id, n.max_num_msgs, n.max_total_msg_bytes, n.max_per_msg_bytes
        INTO place, reader, most, most_bytes, largest
        FROM broker_destination n JOIN broker_subscription s ON s.destination = n.id
        WHERE n.name = queue AND n.client IS NULL AND (n.paused IS NULL OR n.paused = 'CONSUMERS');
    IF reader IS NULL OR (largest > 0 AND size > largest) THEN
        RETURN false;
    END IF;
    IF most > 0 OR most_bytes > 0 THEN
        rivals := current_setting('max_connections');
        SELECT coalesce(sum(messages), 0) AS messages, coalesce(sum(bytes), 0) AS bytes INTO held
            FROM broker_tally WHERE destination = place;
        IF most > 0 AND 2 * greatest(rivals, held.messages) > most
            OR most_bytes > 0 AND 2 * greatest(rivals * size, held.bytes) > most_bytes
        THEN
            RETURN false;
        END IF;
    END IF;
    new_number := nextval('broker_number');
    began := CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) - age;
    INSERT INTO broker_content (number, destination, message_id, sent_at, persistent, refs_left, content)
        VALUES (new_number, place, new_id, began, kept, 1, body);
    INSERT INTO broker_delivery
        (subscription, number, rank, state, consumer, deliveries, suspect, due, expires, size)
        VALUES (reader, new_number, new_rank, CASE WHEN delay > 0 THEN 2 ELSE 0 END, 0, 0, 0,
            CASE WHEN delay > 0 THEN began + delay ELSE 0 END, CASE WHEN lives > 0 THEN began + lives ELSE 0 END,
            size);
    INSERT INTO broker_tally (destination, messages, bytes) VALUES (place, 1, size)
        RETURNING id INTO added;
    IF mod(hashint8(added) & 2147483647, folded) = 0 THEN
        PERFORM broker_fold(place, added);
    END IF;
    RETURN true;
END $$
"""


def upgrade() -> None:
    """Replace the functions."""
    if op.get_bind().dialect.name == "postgresql":
        for function in (FOLD, COUNT, LEAVE, SEND):
            op.get_bind().exec_driver_sql(function)
