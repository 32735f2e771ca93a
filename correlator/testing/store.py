"""A store in memory. The test owns its `Disk`, so the content survives a crashed engine.

It keeps the contract of the port `Store` as the SQL store does, and passes the same fault points around a commit. The
content is kept as bytes, so that no later change of an object in the engine reaches it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from correlator.core.commit import (
    CheckpointCommit,
    ContextCut,
    DiscardCommit,
    Endpoint,
    IdSegment,
    OutboundSegment,
    ReceiveCommit,
    ReceiveSegment,
    Recovered,
    RegistryCommit,
    SenderCut,
    StateSegment,
    Suspect,
    SuspectCommit,
    Write,
)
from correlator.core.deadletters import Letter
from correlator.core.faults import point
from correlator.errors import CommitUnknown, Fenced, StoreBusy, StoreError
from correlator.events import DeadLetter
from correlator.ports import Store

CommitFault = Literal["busy", "lost_request", "lost_reply", "failed", "failed_committed"]
"""A fault of one commit.

`busy`: the transaction is rolled back. `lost_request`, `lost_reply`: the connection is lost before or after the
transaction takes place; the outcome is unknown until the engine calls `resolve`. `failed`, `failed_committed`: an I/O
error after which the engine must stop; the transaction is absent or present.
"""

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode
_checkpoint_decoder = msgspec.msgpack.Decoder(CheckpointCommit)
_received_decoder = msgspec.msgpack.Decoder(ReceiveSegment)
_ids_decoder = msgspec.msgpack.Decoder(IdSegment)
_state_decoder = msgspec.msgpack.Decoder(StateSegment)
_outbound_decoder = msgspec.msgpack.Decoder(OutboundSegment)
_endpoint_decoder = msgspec.msgpack.Decoder(Endpoint)
_dead_decoder = msgspec.msgpack.Decoder(DeadLetter)
_NOTHING = CheckpointCommit(number=0, engine_time=0.0, digest=b"", contexts=(), senders=())


class _Span(NamedTuple):
    """A segment of messages: the number of its last message, and its encoded content."""

    last: int
    content: bytes


class Disk:
    """The committed content, and the epoch of its owner. It survives engines; only `ModelStore` changes it."""

    def __init__(self) -> None:
        self.epoch = 0
        self.commit = 0
        self.checkpoint = _encode(_NOTHING)
        self.state: dict[int, bytes] = {}
        self.ids: dict[tuple[str, int], bytes] = {}
        self.confirmed_batches: dict[str, int] = {}
        self.consumed: dict[str, int] = {}
        self.receive_log: dict[tuple[str, int], _Span] = {}
        self.outbound: dict[tuple[str, int], _Span] = {}
        self.endpoints: dict[str, bytes] = {}
        self.dead: list[bytes] = []
        self.suspects: list[Suspect] = []

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Return all dead letters, oldest first."""
        return [_dead_decoder.decode(content) for content in self.dead if content]

    def content(self) -> tuple[object, ...]:
        """Return a copy of the whole content, for comparison with the content at another moment."""
        return tuple(value.copy() if isinstance(value, dict | list) else value for value in vars(self).values())

    def recovered(self) -> Recovered:
        """Return the whole content, as the start of an engine reads it."""
        cut = _checkpoint_decoder.decode(self.checkpoint)
        return Recovered(
            epoch=self.epoch,
            commit=self.commit,
            checkpoint=cut.number,
            engine_time=cut.engine_time,
            digest=cut.digest,
            contexts=list(cut.contexts),
            senders=list(cut.senders),
            state=[_state_decoder.decode(self.state[number]) for number in sorted(self.state)],
            ids=[_ids_decoder.decode(self.ids[key]) for key in sorted(self.ids)],
            confirmed_batches={name: number for name, number in self.confirmed_batches.items() if number},
            consumed={name: number for name, number in self.consumed.items() if number},
            receive_log=[_received_decoder.decode(self.receive_log[key].content) for key in sorted(self.receive_log)],
            outbound=[_outbound_decoder.decode(self.outbound[key].content) for key in sorted(self.outbound)],
            suspects=[msgspec.structs.replace(one, deaths=one.deaths + 1) for one in sorted(self.suspects, key=_key)],
            endpoints=[_endpoint_decoder.decode(self.endpoints[name]) for name in sorted(self.endpoints)],
        )

    def segments(self, numbers: Sequence[int]) -> list[StateSegment]:
        """Return the state segments with these numbers, in order; missing ones are left out."""
        return [_state_decoder.decode(self.state[number]) for number in sorted(numbers) if number in self.state]

    def letters(self, above: int, most: int) -> list[Letter]:
        """Return dead letters with larger numbers than `above`, in order, at most `most`."""
        found = [(number, content) for number, content in enumerate(self.dead, 1) if number > above and content]
        return [(number, _dead_decoder.decode(content)) for number, content in found[:most]]

    def apply(self, number: int, writes: Sequence["_Prepared"]) -> None:
        """Carry out a transaction, all writes at once."""
        self.commit = number
        for write in writes:
            write(self)


_Prepared = Callable[[Disk], None]


class StoreAround:
    """A store that passes all calls on to another one. Subclasses change some methods; see `correlator.ports.Store`.

    Args:
        store: the other store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> Recovered:
        """See `Store`."""
        return self._store.read()

    def take_over(self, recovered: Recovered) -> None:
        """See `Store`."""
        self._store.take_over(recovered)

    def commit(self, number: int, writes: Sequence[Write]) -> None:
        """See `Store`."""
        self._store.commit(number, writes)

    def resolve(self, number: int) -> bool:
        """See `Store`."""
        return self._store.resolve(number)

    def confirm_lock(self) -> float | None:
        """See `Store`."""
        return self._store.confirm_lock()

    def read_state(self, numbers: Sequence[int]) -> Sequence[StateSegment]:
        """See `Store`."""
        return self._store.read_state(numbers)

    def read_letters(self, above: int, most: int) -> Sequence[Letter]:
        """See `Store`."""
        return self._store.read_letters(above, most)

    def close(self) -> None:
        """See `Store`."""
        self._store.close()


def _no_fault(_number: int, _writes: Sequence[Write]) -> CommitFault | None:
    return None


def _unobserved(_epoch: int, _number: int, _writes: Sequence[Write]) -> None:
    """Ignore the transaction: the default of `committed`."""


class ModelStore:
    """The store of one engine over a disk; implements the port `Store`.

    Args:
        disk: the content, which survives the engine.
        fault: called at each commit; returns what goes wrong with it, or `None`.
        committed: called with (epoch, number, writes) at the moment when a transaction takes place.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        fault: Callable[[int, Sequence[Write]], CommitFault | None] = _no_fault,
        committed: Callable[[int, int, Sequence[Write]], None] = _unobserved,
    ) -> None:
        self._disk = disk
        self._fault = fault
        self._committed = committed
        self._epoch = 0

    def read(self) -> Recovered:
        """Read the whole committed content."""
        point("rec.lock")
        point("rec.load.meta")
        return msgspec.structs.replace(self._disk.recovered(), epoch=self._disk.epoch + 1)

    def take_over(self, recovered: Recovered) -> None:
        """Take the next epoch. Raises `Fenced` E3202 if the disk has changed since `recovered` was read."""
        disk = self._disk
        if (disk.epoch, disk.commit) != (recovered.epoch - 1, recovered.commit):
            what = f"commit {disk.commit} of epoch {disk.epoch} is not what was read: another engine has changed it"
            raise Fenced("E3202", "model store", what)
        point("rec.epoch.commit.before")
        self._epoch = disk.epoch = recovered.epoch
        point("rec.epoch.commit.after")

    def commit(self, number: int, writes: Sequence[Write]) -> None:
        """Commit all writes or none.

        Raises `Fenced` E3202 if another engine has taken the disk, and the errors of `fault`: `StoreBusy` E3102,
        `CommitUnknown` E3103, `StoreError` E3104.
        """
        prepared = [_prepare(write) for write in writes]
        kind = _kind(writes)
        point(f"{kind}.tx.begin")
        self._check_owner(number)
        point(f"{kind}.tx.fence")
        point(f"{kind}.tx.commit.before")
        fault = self._fault(number, writes)
        if fault == "busy":
            raise StoreBusy("E3102", "model store", "the store is locked")
        if fault not in ("lost_request", "failed"):
            self._disk.apply(number, prepared)
            self._committed(self._epoch, number, writes)
        if fault in ("lost_request", "lost_reply"):
            raise CommitUnknown("E3103", "model store", "the connection was lost at commit")
        if fault in ("failed", "failed_committed"):
            raise StoreError("E3104", "model store", "disk I/O error at commit")
        point(f"{kind}.tx.commit.after")

    def resolve(self, number: int) -> bool:
        """Return whether transaction `number` was committed. Raises `Fenced` E3202 if another engine
        has taken the disk.
        """
        self._check_owner(number, number + 1)
        return self._disk.commit == number

    def confirm_lock(self) -> float | None:
        """Return `None`: this store has no lock that could be lost."""
        return None

    def read_state(self, numbers: Sequence[int]) -> Sequence[StateSegment]:
        """Return the state segments with these numbers, in order."""
        return self._disk.segments(numbers)

    def read_letters(self, above: int, most: int) -> Sequence[Letter]:
        """Return dead letters with larger numbers than `above`, in order, at most `most`."""
        return self._disk.letters(above, most)

    def close(self) -> None:
        """Do nothing: this store holds no lock."""

    def _check_owner(self, *numbers: int) -> None:
        disk = self._disk
        if disk.epoch != self._epoch or disk.commit + 1 not in numbers:
            raise Fenced(
                "E3202", "model store", f"epoch {self._epoch} is not {disk.epoch}: another engine has taken over"
            )


def _kind(writes: Sequence[Write]) -> str:
    if any(isinstance(write, CheckpointCommit) for write in writes):
        return "ck"
    return "rx" if any(isinstance(write, ReceiveCommit) for write in writes) else "cfg"


def _prepare(write: Write) -> _Prepared:
    """Encode a write before the transaction begins: if it cannot be encoded, nothing changes."""
    if isinstance(write, ReceiveCommit):
        return _prepare_receive(write)
    if isinstance(write, CheckpointCommit):
        return _prepare_checkpoint(write)
    if isinstance(write, SuspectCommit):
        return _prepare_suspects(write)
    if isinstance(write, DiscardCommit):
        return _prepare_discard(write)
    return _prepare_registry(write)


def _prepare_receive(write: ReceiveCommit) -> _Prepared:
    segment = None if write.segment is None else _span(write.segment)
    ids = {(one.domain, one.number): _encode(one) for one in (write.ids, *write.rewritten) if one is not None}
    dead = [_encode(letter) for letter in write.dead_letters]

    def apply(disk: Disk) -> None:
        if segment is not None and write.segment is not None:
            _insert(disk.receive_log, (write.receiver, write.segment.first), segment)
        disk.ids.update(ids)
        for key in write.forgotten:
            disk.ids.pop(key, None)
        _raise_to(disk.confirmed_batches, write.receiver, write.confirmed_batch)
        disk.dead.extend(dead)
        _discard(disk, write.returned)

    return apply


def _prepare_checkpoint(write: CheckpointCommit) -> _Prepared:
    cut = _encode(
        CheckpointCommit(
            number=write.number,
            engine_time=write.engine_time,
            digest=write.digest,
            contexts=write.contexts,
            senders=write.senders,
        )
    )
    state = {segment.number: _encode(segment) for segment in write.state}
    outbound = [((segment.sender, segment.first), _span(segment)) for segment in write.outbound]
    dead = [_encode(letter) for letter in write.dead_letters]

    def apply(disk: Disk) -> None:
        disk.checkpoint = cut
        for number in write.state_dropped:
            disk.state.pop(number, None)
        for sender in write.senders:
            _prune(disk.outbound, sender.sender, sender.confirmed_through)
        for receiver, number in write.consumed.items():
            _prune(disk.receive_log, receiver, number)
            _raise_to(disk.consumed, receiver, number)
        for number, content in state.items():
            _insert(disk.state, number, content)
        for key, span in outbound:
            _insert(disk.outbound, key, span)
        disk.dead.extend(dead)
        _discard(disk, write.returned)
        absolved = {_key(suspect) for suspect in write.absolved}
        disk.suspects = [one for one in disk.suspects if _key(one) not in absolved]

    return apply


def _prepare_suspects(write: SuspectCommit) -> _Prepared:
    def apply(disk: Disk) -> None:
        others = [one for one in disk.suspects if one.context not in write.contexts]
        disk.suspects = [*others, *write.suspects]

    return apply


def _prepare_discard(write: DiscardCommit) -> _Prepared:
    return lambda disk: _discard(disk, write.numbers)


def _discard(disk: Disk, numbers: Sequence[int]) -> None:
    for number in numbers:
        if number <= len(disk.dead):
            disk.dead[number - 1] = b""  # no number is used a second time


def _prepare_registry(write: RegistryCommit) -> _Prepared:
    put = {endpoint.id: _encode(endpoint) for endpoint in write.put}

    def apply(disk: Disk) -> None:
        disk.endpoints.update(put)
        for name in write.removed:
            _forget(disk, name)
        if write.removed:
            cut = _checkpoint_decoder.decode(disk.checkpoint)
            disk.checkpoint = _encode(_without(cut, write.removed))

    return apply


def _forget(disk: Disk, name: str) -> None:
    """Remove an endpoint with all its content; its ids stay if another receiver shares the domain."""
    for log in (disk.receive_log, disk.outbound):
        for key in [key for key in log if key[0] == name]:
            del log[key]
    disk.confirmed_batches.pop(name, None)
    disk.consumed.pop(name, None)
    endpoints = {other: _endpoint_decoder.decode(content) for other, content in disk.endpoints.items()}
    shared = {endpoint.domain for other, endpoint in endpoints.items() if other != name}
    domain = endpoints[name].domain if name in endpoints else None
    for key in list(disk.ids):
        mine = key[0] == domain or _ids_decoder.decode(disk.ids[key]).receiver == name
        if mine and key[0] not in shared:
            del disk.ids[key]
    disk.endpoints.pop(name, None)


def _without(cut: CheckpointCommit, removed: Sequence[str]) -> CheckpointCommit:
    contexts = [
        ContextCut(
            context.context,
            {receiver: number for receiver, number in context.entered.items() if receiver not in removed},
            [run for run in context.queue if run.receiver not in removed],
            context.spawned,
        )
        for context in cut.contexts
    ]
    senders: list[SenderCut] = [sender for sender in cut.senders if sender.sender not in removed]
    return msgspec.structs.replace(cut, contexts=contexts, senders=senders)


def _key(suspect: Suspect) -> tuple[str, str, int, int]:
    return suspect.context, suspect.receiver, suspect.first, suspect.last


def _span(segment: ReceiveSegment | OutboundSegment) -> _Span:
    return _Span(segment.first + len(segment.messages) - 1, _encode(segment))


def _insert(rows: dict[Any, Any], key: Any, value: Any) -> None:
    if key in rows:
        raise StoreError("E3105", "model store", f"row {key} exists already")
    rows[key] = value


def _prune(rows: dict[tuple[str, int], _Span], owner: str, through: int) -> None:
    for key in [key for key, span in rows.items() if key[0] == owner and span.last <= through]:
        del rows[key]


def _raise_to(numbers: dict[str, int], name: str, number: int) -> None:
    if number > numbers.get(name, 0):
        numbers[name] = number
