"""Adds receivers and senders to a running engine, and begins to remove them (docs/dynamic-parts.md)."""

from collections.abc import Callable, Iterable

from correlator.configuration import Provided, check_part_settings, require
from correlator.core.commit import Endpoint
from correlator.core.delivery import is_stored, with_deliveries
from correlator.core.outbox import Outbox
from correlator.core.registry import Users, is_known, refuse_default, refuse_removal
from correlator.errors import ConfigError
from correlator.runtime.actor import Actor
from correlator.runtime.life import Life, Phase
from correlator.runtime.logs import get_logger
from correlator.runtime.parts import Parts
from correlator.runtime.receiver import Receiver
from correlator.runtime.registry import Registry
from correlator.runtime.remover import Remover
from correlator.runtime.sender import Sender
from correlator.settings import EngineSettings, ReceiverSettings, SenderSettings


class PartChanges:
    """Adds and removes dynamic parts for an `Engine`, whose methods of the same names document the errors. Any thread
    may call it.

    Args:
        settings: settings of the engine.
        provided: connections and store that the program passes to the engine in place of the configured ones.
        registry: records the parts.
        life: says whether parts can change now.
        parts: returns the parts of the engine.
        remover: returns what carries removals out; `None` before the handlers of the recovery run.
        run: starts the thread of an actor, if the threads of the engine run.
    """

    def __init__(
        self,
        settings: EngineSettings,
        provided: Provided,
        registry: Registry,
        life: Life,
        parts: Callable[[], Parts],
        remover: Callable[[], Remover | None],
        run: Callable[[Actor], None],
    ) -> None:
        self._settings = settings
        self._provided = provided
        self._registry = registry
        self._life = life
        self._parts = parts
        self._remover = remover
        self._run = run
        self._log = get_logger(engine=settings.name)

    def add_receiver(self, settings: ReceiverSettings) -> Receiver:
        """Add a receiver, or return the one that has these settings already."""
        self._life.refuse_child()
        require(settings, ReceiverSettings, "add_receiver")
        warnings = check_part_settings(settings, self._settings, self._provided)
        with self._life.changing:
            parts = self._parts()
            if self._known(settings):
                return parts.receivers[settings.id]
            self._warn(warnings)
            endpoint = self._registry.entry_of(settings, parts.subscription_of(settings))
            numbers = parts.numbers_of_new(settings.id)
            receiver = parts.make_receiver(settings, numbers, endpoint.domain)
            before = dict.fromkeys(receiver.targets.names, numbers.next_number - 1)
            self._record(parts, with_deliveries(endpoint, before) if is_stored(endpoint) else endpoint)
            parts.add_receiver(receiver)
            receiver.open()
            self._run(receiver)
            if self._life.phase is Phase.STOPPING:
                receiver.drain()
        return receiver

    def add_sender(self, settings: SenderSettings) -> Sender:
        """Add a sender, or return the one that has these settings already."""
        self._life.refuse_child()
        require(settings, SenderSettings, "add_sender")
        warnings = check_part_settings(settings, self._settings, self._provided)
        refuse_default(self._registry.default_senders, settings)
        with self._life.changing:
            parts = self._parts()
            if self._known(settings):
                return parts.senders[settings.id]
            self._warn(warnings)
            endpoint = self._registry.entry_of(settings)
            sender = parts.make_sender(settings, self._registry.source_of(endpoint))
            self._record(parts, endpoint)
            parts.add_sender(sender)
            sender.open()
            self._run(sender)
        return sender

    def default_outbox(self, name: str) -> Outbox | None:
        """The outbox of a default sender, which the first send to it makes; called in the sending thread."""
        settings = self._registry.default_senders.get(name)
        return self.add_sender(settings).outbox if settings is not None else None

    def remove(self, part_id: str) -> None:
        """Begin to remove a part."""
        self._life.refuse_child()
        with self._life.changing:
            self._life.refuse_change(part_id)
            processors = [thread.processor for thread in self._parts().processor_threads()]
            users = [Users(one.name, one.receivers, one.senders) for one in processors]
            refuse_removal(self._registry.endpoints, part_id, users)
            remover = self._remover()
            assert remover is not None
            remover.begin(part_id)

    def removed(self, part_id: str) -> bool:
        """Whether no part has this id, and none is being removed."""
        self._life.refuse_child()
        return part_id not in self._registry.endpoints and not self._leaving(part_id)

    def _known(self, settings: ReceiverSettings | SenderSettings) -> bool:
        self._life.refuse_change(settings.id)
        leaving = self._leaving(settings.id)  # read before the registry: a removal takes the entry away before it ends
        return is_known(self._registry.endpoints, settings, leaving=leaving)

    def _leaving(self, part_id: str) -> bool:
        remover = self._remover()
        return remover is not None and remover.removing(part_id)

    def _record(self, parts: Parts, endpoint: Endpoint) -> None:
        self._registry.record(endpoint)
        if parts.recording is not None:
            parts.recording.added(endpoint)

    def _warn(self, warnings: Iterable[ConfigError]) -> None:
        for warning in warnings:
            self._log.warning(str(warning))
