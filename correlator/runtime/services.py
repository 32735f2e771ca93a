"""What a recovery makes beside the parts of an engine: the objects that carry out its orders."""

from dataclasses import dataclass

from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.forwarding import Forwarder
from correlator.runtime.letters import Letters
from correlator.runtime.pausing import Pausing
from correlator.runtime.remover import Remover


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What carries out orders to a running engine.

    Attributes:
        checkpointer: takes checkpoints; `None` without a store.
        remover: removes dynamic parts.
        pausing: pauses and drains parts.
        letters: discards dead letters and brings them back; `None` without a store.
        forwarder: sends dead letters; `None` without the setting `dead_letter_sender`.
    """

    checkpointer: Checkpointer | None
    remover: Remover
    pausing: Pausing
    letters: Letters | None
    forwarder: Forwarder | None
