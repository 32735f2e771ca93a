"""Properties for facts of JMS that a `Message` has no field for. Every connector passes them on."""

MESSAGE_KIND = "jms_message_type"
"""Property with the kind of a JMS message: `text`, `map`, `object`, `stream`, `header`; otherwise the body is bytes."""
TEXT = "text"
HIGHEST_PRIORITY = 9
