"""PostgreSQL: `broker_send` and `broker_leave` execute fewer statements for a single message.

An expression without a table, assigned to a variable, is not a statement of its own. It takes a tenth of the time.
"""

from alembic import op

revision = "0006"
down_revision = "0005"

LEAVE = """
CREATE OR REPLACE FUNCTION broker_leave(
    place bigint, reader bigint, holder bigint, their_state bigint, numbers bigint[], folded bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    lowest bigint;
    highest bigint;
    places tid[];
    freed bigint;
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
    PERFORM broker_count(place, -cardinality(numbers), -freed, folded);
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
    PERFORM broker_count(place, 1, size, folded);
    RETURN true;
END $$
"""


def upgrade() -> None:
    """Replace the functions."""
    if op.get_bind().dialect.name == "postgresql":
        for function in (LEAVE, SEND):
            op.get_bind().exec_driver_sql(function)
