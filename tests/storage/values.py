"""Values for tests of the store, short to write."""

import zlib

from correlator.core.commit import (
    CheckpointCommit,
    ContextCut,
    Endpoint,
    IdRun,
    IdSegment,
    OutboundSegment,
    QueueRun,
    ReceiveCommit,
    ReceiveSegment,
    Recovered,
    SenderCut,
    StateEntry,
    StateSegment,
    Suspect,
)
from correlator.events import DeadLetter, Headers, Message, PropertyValue
from correlator.ports import Store


def message(text: str) -> Message:
    properties: dict[str, PropertyValue] = {
        "uniqueMessageId": text,
        "price": 1.5,
        "count": 2**62,
        "flag": True,
        "raw": b"\x00\xff",
        "none": None,
    }
    return Message(text.encode(), properties, "key", "queue:orders", Headers(message_id=text, priority=4))


def messages(first: int, count: int) -> list[Message]:
    return [message(f"m{number}") for number in range(first, first + count)]


def ids(number: int, *names: str, domain: str = "d", receiver: str = "orders", batch: int = 1) -> IdSegment:
    run = IdRun(
        float(number),
        list(names),
        ["S01"] * len(names),
        [zlib.crc32(name.encode("utf-8", "replace")) for name in names],
    )
    return IdSegment(domain, number, receiver, batch, [run])


def received(first: int, count: int, *, receiver: str = "orders", number: int = 0, confirmed: int = 0) -> ReceiveCommit:
    return ReceiveCommit(
        receiver=receiver,
        segment=ReceiveSegment(receiver, first, messages(first, count)),
        ids=ids(number, *(f"m{first + n}" for n in range(count)), receiver=receiver, batch=first) if number else None,
        confirmed_batch=confirmed,
    )


def state(number: int, **values: bytes | None) -> StateSegment:
    return StateSegment(number, [StateEntry("monitor:A#0", key.encode(), value) for key, value in values.items()])


def outbound(first: int, count: int, sender: str = "alerts") -> OutboundSegment:
    return OutboundSegment(sender, first, messages(first, count))


def sender(confirmed: int = 0, next_sequence: int = 1, name: str = "alerts") -> SenderCut:
    return SenderCut(name, f"{name}:S01", next_sequence, confirmed)


def context(*runs: QueueRun, entered: dict[str, int] | None = None) -> ContextCut:
    return ContextCut("main", entered or {"orders": 10}, list(runs), {"Positions": 3})


def checkpoint(number: int, **parts: object) -> CheckpointCommit:
    values: dict[str, object] = {
        "engine_time": number * 0.5,
        "digest": f"digest {number}".encode(),
        "contexts": [],
        "senders": [],
    }
    return CheckpointCommit(number=number, **(values | parts))  # type: ignore[arg-type]


def endpoint(name: str, kind: str = "receiver", domain: str = "d") -> Endpoint:
    return Endpoint(
        id=name,
        kind=kind,  # type: ignore[arg-type]
        origin="dynamic",
        reliability="EXACTLY_ONCE",
        connection="local",
        destination="queue:orders",
        domain=domain if kind == "receiver" else "",
        settings=b'{"a": 1}',
    )


def suspect(first: int, last: int, deaths: int = 0, context: str = "main") -> Suspect:
    return Suspect(context, "orders", first, last, deaths)


def letter(text: str = "E5101 bad") -> DeadLetter:
    return DeadLetter(kind="mapping", origin="orders", reason=text, message=message("bad"), unique_id="u", time=3.5)


def opened(store: Store) -> Recovered:
    """Read a store and take it over, as a start does."""
    recovered = store.read()
    store.take_over(recovered)
    return recovered


def contents(recovered: Recovered) -> dict[str, object]:
    """Everything but the epoch, comparable."""
    return {
        "commit": recovered.commit,
        "checkpoint": recovered.checkpoint,
        "engine_time": recovered.engine_time,
        "digest": recovered.digest,
        "contexts": list(recovered.contexts),
        "senders": list(recovered.senders),
        "state": list(recovered.state),
        "ids": list(recovered.ids),
        "confirmed_batches": recovered.confirmed_batches,
        "consumed": recovered.consumed,
        "receive_log": list(recovered.receive_log),
        "outbound": list(recovered.outbound),
        "endpoints": list(recovered.endpoints),
        "suspects": list(recovered.suspects),
    }
