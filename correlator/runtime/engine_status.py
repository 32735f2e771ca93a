"""Collects the status of an engine from its parts."""

import threading
from dataclasses import replace

from correlator.core.ages import Ages
from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.clock import Clock
from correlator.runtime.life import Life
from correlator.runtime.parts import Parts
from correlator.runtime.receiver import Receiver
from correlator.runtime.reporter import resident_bytes
from correlator.runtime.sender import Sender
from correlator.runtime.status import CheckpointCounters, Location, Status
from correlator.runtime.supervisor import Supervisor


class EngineStatus:
    """Makes `Status` values of one engine. Any thread may call it, while the threads of the engine go on counting.

    Args:
        name: name of the engine.
        life: the life of the engine.
        supervisor: counts the events on which a handler failed.
        clock: the time of day.
    """

    def __init__(self, name: str, life: Life, supervisor: Supervisor, clock: Clock) -> None:
        self._name = name
        self._life = life
        self._supervisor = supervisor
        self._clock = clock
        self._oldest_events = Ages(threading.Lock())
        self._oldest_sends = Ages(threading.Lock())

    def of(self, parts: Parts, checkpointer: Checkpointer | None) -> Status:
        """States and counters of the engine.

        Args:
            parts: the parts of the engine.
            checkpointer: has the counters of checkpoints; `None` without a store, and before the recovery.
        """
        statuses, now, writer = parts.statuses, parts.engine_time.now(), parts.writer
        receivers, senders, contexts = parts.receivers, parts.senders, parts.contexts
        both: dict[str, Receiver | Sender] = {**receivers, **senders}
        processors = parts.processor_threads()
        return Status(
            name=self._name,
            phase=self._life.shown,
            time=self._clock.wall(),
            started=self._life.began,
            places={name: Location(part.settings.connection, part.settings.destination) for name, part in both.items()},
            deliveries={name: part.targets.names for name, part in receivers.items()},
            pipeline_senders={thread.context.name: thread.processor.senders for thread in processors},
            reliabilities={name: part.settings.reliability for name, part in both.items()},
            receivers={name: (part.state.value, replace(part.counters)) for name, part in receivers.items()},
            senders={
                name: (statuses.of_part(name).status, replace(part.counters), parts.to_send(part))
                for name, part in senders.items()
            },
            conditions={name: statuses.of_part(name) for name in both},
            connections=statuses.of_connections(),
            windows={name: part.window for name, part in receivers.items() if part.settings.flow_control},
            waits={name: part.waits_for for name, part in receivers.items() if part.waits_for},
            paused=frozenset(name for name, part in both.items() if part.paused),
            duplicate_ids=sum(len(one) for one in list(writer.domains.detectors.values())) if writer else 0,
            removed_received=parts.removed.received,
            removed_sent=parts.removed.sent,
            resident_bytes=resident_bytes(),
            contexts={name: thread.queue.waiting for name, thread in contexts.items()},
            monitors={thread.context.name: replace(thread.counters) for thread in parts.monitor_threads()},
            oldest_events=self._oldest_events.look(now, {name: one.queue.numbers for name, one in contexts.items()}),
            oldest_sends=self._oldest_sends.look(now, {name: parts.numbers(one) for name, one in senders.items()}),
            outbox_limits={name: one.settings.max_outstanding for name, one in senders.items()},
            latencies={name: one.latency.counters() for name, one in senders.items() if one.outbox.stored},
            store_fails=None if writer is None else writer.failing,
            unhandled={name: unhandled.count for name, unhandled in parts.unhandled.items()},
            unhandled_letters=sum(unhandled.letters for unhandled in parts.unhandled.values()),
            handler_failures=self._supervisor.handler_failures,
            handler_skips=self._supervisor.handler_skips,
            pipelines={thread.context.name: replace(thread.counters) for thread in processors},
            checkpoints=replace(checkpointer.counters) if checkpointer else CheckpointCounters(),
            store_commits=writer.commits if writer else 0,
            engine_time=now,
        )
