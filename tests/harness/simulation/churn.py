"""A receiver and a sender that are added and removed while the engine runs, in some of the scenarios with a store.

The monitor `Ledger` keeps what they received and sent. They are not in the `Setup` of the history, since its invariants
need parts that stay: numbers and ids of a part end when the part is removed.
"""

import contextlib
import random
from dataclasses import replace

from correlator.errors import ConfigError, UsageError
from correlator.reliability import Reliability
from correlator.runtime.actor import Actor
from correlator.runtime.engine import Engine
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.invariants.history import Published
from tests.harness.simulation import application

MOST = 12
SOURCE = "queue:extras"
"""The destination that the receiver reads."""
RECEIVER = ReceiverSettings(
    id="extras",
    connection="memory",
    destination=SOURCE,
    reliability=Reliability.EXACTLY_ONCE,
    event=f"{application.__name__}:Extra",
    max_batch_size=2,
)
SENDER = SenderSettings(
    id="aside",
    connection="memory",
    destination="queue:aside",
    reliability=Reliability.EXACTLY_ONCE,
    max_batch_size=2,
)
UNFIT = replace(RECEIVER, id="unfit", max_batch_size=0)
"""A receiver that the engine must not store: every later start would be refused."""


def workload(seed: int) -> list[Published]:
    """Return the messages for the receiver; none in most scenarios."""
    rng = random.Random(f"churn {seed}")
    if rng.random() > 0.3:
        return []
    return [Published(f"ex{n}", f"{n}:E", "E", f"ex{n}") for n in range(rng.randint(MOST // 2, MOST))]


def churn(engine: Engine, rng: random.Random) -> Actor | None:
    """Add or remove one of the two; return the actor of an added part. Raises the errors of an engine's commit.

    Before that, code offers a receiver that the engine must refuse.
    """
    if UNFIT.id not in engine.registry:
        with contextlib.suppress(ConfigError):
            return engine.add_receiver(UNFIT)
    settings = rng.choice((RECEIVER, SENDER))
    if settings.id in engine.registry:
        engine.remove(settings.id)
        return None
    return _add(engine, settings)


def settle(engine: Engine) -> Actor | None:
    """Add the receiver if it is missing, so that no message is left; return its actor if it was added."""
    return _add(engine, RECEIVER) if RECEIVER.id not in engine.registry else None


def _add(engine: Engine, settings: ReceiverSettings | SenderSettings) -> Actor | None:
    try:
        if isinstance(settings, ReceiverSettings):
            return engine.add_receiver(settings)
        return engine.add_sender(settings)
    except UsageError:  # its removal is not complete
        return None
