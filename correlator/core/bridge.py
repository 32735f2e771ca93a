"""A bridge: sends the messages of receivers on (`docs/bridges.md`). It implements `ports.Processor` without state."""

from collections.abc import Iterable, Mapping, Sequence

from correlator.core.batch_context import Delivered, Effects
from correlator.core.fields import ForwardMapping
from correlator.core.messages import checked
from correlator.core.steps import ConfiguredStep
from correlator.errors import MappingError
from correlator.events import DeadLetter, Message
from correlator.selector import Selector
from correlator.settings import BridgeSettings, EngineSettings

_MAX_ROWS = 1000
_MAX_BYTES = 16 * 1024 * 1024


def bridges_of(settings: EngineSettings) -> "list[Bridge]":
    """Make the bridges of an engine, whose settings were checked; raises as `Bridge`."""
    physical = settings.destinations
    destinations = {one.id: physical.get(one.destination, one.destination) for one in settings.receivers}
    return [Bridge(bridge, destinations, f"bridges[{at}]") for at, bridge in enumerate(settings.bridges)]


class Bridge:
    """Makes the messages that a bridge sends; see `ports.Processor`.

    Args:
        settings: settings of the bridge.
        destinations: destination of each receiver that the bridge names, by its id.
        where: names the bridge in errors of its settings.

    Raises:
        ConfigError: E6003 to E6007 for the selector; E1061, E1065, E1066, E1067 for the mapping.
    """

    planned_s = 0.0
    steps: Sequence[ConfiguredStep] = ()

    def __init__(self, settings: BridgeSettings, destinations: Mapping[str, str], where: str) -> None:
        self.name = settings.name
        self.receivers: Sequence[str] = settings.from_
        self.senders: Sequence[str] = settings.to
        self.max_rows = _MAX_ROWS
        self.max_bytes = _MAX_BYTES
        self._destinations = destinations
        self._selector = Selector.optional(settings.selector, f"{where}.selector")
        self._mapping = ForwardMapping(settings.mapping, f"bridge {settings.name}.mapping")

    def open(self) -> None:
        """Do nothing: a bridge is ready when it is made."""

    def process(self, batch: Sequence[Delivered], state: object, engine_time: float) -> Effects:  # noqa: ARG002
        """Send each selected message of the batch to all senders; a message that cannot be mapped becomes a dead
        letter.
        """
        sends: list[tuple[str, Message]] = []
        dead: list[DeadLetter] = []
        for delivered in self._selected(batch):
            destination = self._destinations[delivered.receiver]
            try:
                message = checked(self._mapping.message(delivered.message, destination))
            except MappingError as error:
                dead.append(delivered.dead_letter(self.name, str(error), engine_time))
            else:
                sends += [(sender, message) for sender in self.senders]
        return Effects(sends, (), dead)

    def conclude(self, state: object, engine_time: float) -> Effects:  # noqa: ARG002
        """Return no effects: a bridge keeps nothing back."""
        return Effects()

    def close(self) -> None:
        """Do nothing: a bridge holds nothing open."""

    def _selected(self, batch: Sequence[Delivered]) -> Iterable[Delivered]:
        if self._selector is None:
            return batch
        matches = self._selector.matches
        return [one for one in batch if matches(one.message)]
