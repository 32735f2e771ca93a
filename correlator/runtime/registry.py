"""The registry of one life: which receivers and senders the engine knows, and what the store records of them."""

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping

import msgspec

from correlator.configuration import Provided
from correlator.core.commit import Endpoint, Recovered, RegistryCommit
from correlator.core.delivery import Layout
from correlator.core.differences import refuse
from correlator.core.faults import point
from correlator.core.registry import OTHER_IDS, default_senders, endpoint_of, ids_change, lacks_source, reconcile
from correlator.runtime.dynamic_parts import compare_stored
from correlator.runtime.logs import get_logger
from correlator.runtime.restart import received_of
from correlator.runtime.subscriptions import routing, subscriptions, unmoved
from correlator.settings import EngineSettings, ReceiverSettings, SenderSettings


class Registry:
    """The receivers and senders of an engine, as the store records them.

    The thread that starts the engine calls `compare` and `record_changes`. Later any thread may read `endpoints`, and
    one thread at a time records a new part.

    Args:
        settings: settings of the engine.
        provided: connections and store that the program passes to the engine in place of the configured ones.
        identity: the unique part of the source ids that senders get in this life.
        commit: commits a change and waits until it is durable; does nothing without a store.

    Attributes:
        endpoints: the entries by id. The mapping is replaced, never changed in place, so that a reader needs no lock.
        default_senders: settings of the default senders by id, one for each connection without configured senders. Each
            of these senders exists as soon as something is sent to it.
    """

    def __init__(
        self,
        settings: EngineSettings,
        provided: Provided,
        identity: str,
        commit: Callable[[RegistryCommit], None],
    ) -> None:
        self.endpoints: Mapping[str, Endpoint] = {}
        self.default_senders = {sender.id: sender for sender in default_senders(settings, provided.connections)}
        self._settings = settings
        self._provided = provided
        self._identity = identity
        self._commit = commit
        self._source_numbers = itertools.count(1)
        self._changes = RegistryCommit()
        self._replacing = threading.Lock()
        self._log = get_logger(engine=settings.name)

    def compare(self, recovered: Recovered, layout: Layout) -> None:
        """Compare the configuration with the store, and keep the changes that the start must record; writes nothing.

        Args:
            recovered: what the store holds.
            layout: the contexts of the configuration.

        Raises `RecoveryRefused` E4301 to E4305, E4315 and E4316; the error names every difference. The store stays
        unchanged.
        """
        point("cfg.compare")
        refuse(compare_stored(recovered.endpoints, self._settings, self._provided))
        changes = reconcile(
            recovered.endpoints,
            [*self._settings.receivers, *self._settings.senders],
            self.default_senders.values(),
            self._settings.destinations,
            subscriptions(self._settings, recovered.endpoints, self._provided.connections),
            routing=routing(self._settings, self._provided.connections),
            unmoved=unmoved(self._settings, recovered.endpoints, self._provided.connections),
            layout=layout,
            received=received_of(recovered),
        )
        self._warn_of_changed_ids(recovered.endpoints, changes.put)
        self._changes = RegistryCommit(put=[self._with_source(endpoint) for endpoint in changes.put])
        self.endpoints = {endpoint.id: endpoint for endpoint in (*recovered.endpoints, *self._changes.put)}

    def record_changes(self) -> None:
        """Commit the changes that `compare` has kept. Raises as `commit`."""
        if self._changes.put:
            point("cfg.register.commit")
            self.commit(self._changes)

    def entry_of(self, settings: ReceiverSettings | SenderSettings, subscription: str = "") -> Endpoint:
        """Make the entry of a part that code adds, with a new source id if the registry records one for this kind of
        part.

        Args:
            settings: settings of the part.
            subscription: name of the subscription that a receiver reads; "" if its connection does not tell.
        """
        destinations = self._settings.destinations
        return self._with_source(
            endpoint_of(settings, dynamic=True, destinations=destinations, subscription=subscription)
        )

    def source_of(self, endpoint: Endpoint) -> str:
        """The messageSourceId of a sender: the recorded one; without a record, a new one for this life."""
        return endpoint.source or self._new_source()

    def record(self, endpoint: Endpoint) -> None:
        """Commit the entry of a new part, and return when it is durable. Raises as `commit`."""
        self.commit(RegistryCommit(put=[endpoint]))
        with self._replacing:
            self.endpoints = {**self.endpoints, endpoint.id: endpoint}

    def forget(self, part_id: str) -> None:
        """Remove the entry of a part that the store no longer records."""
        with self._replacing:
            self.endpoints = {name: endpoint for name, endpoint in self.endpoints.items() if name != part_id}

    def commit(self, commit: RegistryCommit) -> None:
        """Commit a change, and return when it is durable. Raises `StoreError` E3110 if this does not happen in time."""
        self._commit(commit)

    def _warn_of_changed_ids(self, stored: Iterable[Endpoint], put: Iterable[Endpoint]) -> None:
        known = {endpoint.id: endpoint for endpoint in stored}
        for wanted in put:
            change = ids_change(known[wanted.id], wanted) if wanted.id in known else None
            if change is not None:
                self._log.warning(f"W4302 {OTHER_IDS}", receiver=wanted.id, before=change.before, after=change.after)

    def _with_source(self, endpoint: Endpoint) -> Endpoint:
        return msgspec.structs.replace(endpoint, source=self._new_source()) if lacks_source(endpoint) else endpoint

    def _new_source(self) -> str:
        return f"{self._identity}:S{next(self._source_numbers):02d}"
