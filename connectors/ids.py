"""The ids that sources give to messages: the properties that the default templates of receivers read."""

from typing import NamedTuple, Self

from correlator.events import SOURCE_ID, UNIQUE_ID, PropertyValue
from correlator.settings import ReceiverSettings


class WantedIds(NamedTuple):
    """Which of the two properties the templates of a receiver read: the others would only take room in each message."""

    unique_id: bool
    source_id: bool

    @classmethod
    def of(cls, receiver: ReceiverSettings) -> Self:
        """Return which of them a receiver wants."""
        templates = (receiver.unique_message_id, receiver.message_source_id)
        return cls(*(any(f"property.{name}" in one for one in templates) for name in (UNIQUE_ID, SOURCE_ID)))

    def properties(self, unique_id: str, source_id: str) -> dict[str, PropertyValue]:
        """Return the properties of a message with these ids."""
        found: dict[str, PropertyValue] = {}
        if self.unique_id:
            found[UNIQUE_ID] = unique_id
        if self.source_id:
            found[SOURCE_ID] = source_id
        return found
