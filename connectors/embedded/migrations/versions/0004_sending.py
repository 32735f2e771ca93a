"""SQLite: a view into which one INSERT sends a message, as the function `broker_send` does on PostgreSQL."""

from alembic import op

revision = "0004"
down_revision = "0003"

VIEW = """
CREATE VIEW broker_send (queue, message_id, began, persistent, content, rank, delay, lives) AS
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE 0
"""
TRIGGER = """
CREATE TRIGGER broker_send_message INSTEAD OF INSERT ON broker_send WHEN EXISTS (
    SELECT 1 FROM broker_destination n LEFT JOIN broker_tally t ON t.destination = n.id WHERE n.name = NEW.queue
        AND n.client IS NULL AND (n.paused IS NULL OR n.paused = 'CONSUMERS')
        AND (n.max_num_msgs <= 0 OR coalesce(t.messages, 0) < n.max_num_msgs)
        AND (n.max_total_msg_bytes <= 0 OR coalesce(t.bytes, 0) + length(NEW.content) <= n.max_total_msg_bytes)
        AND (n.max_per_msg_bytes <= 0 OR length(NEW.content) <= n.max_per_msg_bytes)
) BEGIN
    UPDATE broker_store SET last_number = last_number + 1;
    INSERT INTO broker_content (number, destination, message_id, sent_at, persistent, refs_left, content)
        SELECT o.last_number, n.id, NEW.message_id, NEW.began, NEW.persistent, 1, NEW.content
        FROM broker_store o, broker_destination n WHERE n.name = NEW.queue;
    INSERT INTO broker_delivery
        (subscription, number, rank, state, consumer, deliveries, suspect, due, expires, size)
        SELECT s.id, o.last_number, NEW.rank, CASE WHEN NEW.delay > 0 THEN 2 ELSE 0 END, 0, 0, 0,
            CASE WHEN NEW.delay > 0 THEN NEW.began + NEW.delay ELSE 0 END,
            CASE WHEN NEW.lives > 0 THEN NEW.began + NEW.lives ELSE 0 END, length(NEW.content)
        FROM broker_store o, broker_destination n JOIN broker_subscription s ON s.destination = n.id
        WHERE n.name = NEW.queue;
    INSERT INTO broker_tally (destination, messages, bytes)
        SELECT id, 1, length(NEW.content) FROM broker_destination WHERE name = NEW.queue
        ON CONFLICT (destination) DO UPDATE
        SET messages = messages + excluded.messages, bytes = bytes + excluded.bytes, changes = changes + 1;
END
"""


def upgrade() -> None:
    """Make the view and its trigger."""
    if op.get_bind().dialect.name == "sqlite":
        for statement in (VIEW, TRIGGER):
            op.get_bind().exec_driver_sql(statement)
