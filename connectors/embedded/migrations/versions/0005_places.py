"""PostgreSQL: `broker_leave` reads only the messages that end, whatever the statistics of the server say.

If the statistics do not know the messages of a queue yet, as when it was empty at the last ANALYZE, the server takes
the queue for nearly empty, and reads all of its messages rather than looking up some by their numbers.
"""

from alembic import op

revision = "0005"
down_revision = "0004"

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
    PERFORM broker_count(place, -cardinality(numbers), -freed, folded);
    RETURN true;
END $$
"""


def upgrade() -> None:
    """Replace the function."""
    if op.get_bind().dialect.name == "postgresql":
        op.get_bind().exec_driver_sql(LEAVE)
