"""What JMS says of a message and a `Message` has no place for: properties that every connector passes on."""

MESSAGE_KIND = "jms_message_type"
"""Property with the kind of a JMS message: `text`, `map`, `object`, `stream` or `header`; bytes where there is none."""
TEXT = "text"
HIGHEST_PRIORITY = 9
