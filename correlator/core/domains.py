"""The duplicate detection domains of an engine: a detector for each, and the receivers that use it."""

from collections.abc import Iterable

from correlator.core.commit import Endpoint
from correlator.core.dedup import DuplicateDetector


class Domains:
    """The duplicate detectors by domain. Owner: the thread that owns the store.

    Args:
        window: how many ids of one source a detector remembers.
        expiry: seconds for which the time queue of a detector keeps an id; 0 for no time queue.

    Attributes:
        detectors: the detectors that were made so far, by domain.
    """

    def __init__(self, window: int, expiry: float) -> None:
        self.detectors: dict[str, DuplicateDetector] = {}
        self._window = window
        self._expiry = expiry
        self._of: dict[str, str] = {}

    def detector(self, domain: str) -> DuplicateDetector:
        """The duplicate detector of a domain, made at the first call."""
        detector = self.detectors.get(domain)
        if detector is None:
            detector = self.detectors[domain] = DuplicateDetector(domain, self._window, self._expiry)
        return detector

    def note_receivers(self, endpoints: Iterable[Endpoint]) -> None:
        """Note the domains of these receivers, which the registry now has."""
        self._of.update({endpoint.id: endpoint.domain for endpoint in endpoints if endpoint.domain})

    def forget_receiver(self, name: str) -> None:
        """Note that the registry no longer has a receiver.

        A domain without receivers ends. In any other domain the batches of the receiver count as acknowledged.
        """
        domain = self._of.pop(name, None)
        if domain is None:
            return
        if domain not in self._of.values():
            self.detectors.pop(domain, None)
        elif domain in self.detectors:
            detector = self.detectors[domain]
            detector.confirm(name, detector.last_batch(name))
