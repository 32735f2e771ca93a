"""State that a checkpoint can hold: the allowed types, their encoding, and `StateTable`.

State holds data only, never code or open resources. When Python defines a monitor class, a type that cannot be stored
is refused with its path. The encoding is MessagePack in deterministic order, so equal state has equal bytes; only a
dict whose keys are not text keeps its own order.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import types
import typing
import uuid
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

import msgspec

from correlator.core.commit import StateEntry
from correlator.errors import StateError

K = TypeVar("K")
V = TypeVar("V")

_PLAIN = {
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    dt.datetime,
    dt.date,
    dt.time,
    dt.timedelta,
    decimal.Decimal,
    uuid.UUID,
}
CHECKED = 100
"""The largest number of values of a table that a start decodes to check that they are of the declared type."""
_KEYS = {str, int, bytes, bool, dt.date, uuid.UUID}
_CONTAINERS = {list, tuple, dict, set, frozenset}
_ALLOWED = (
    "Allowed: None, bool, int, float, str, bytes, datetime types, Decimal, UUID, enums, list, tuple, dict, set, "
    "structs, events and dataclasses of these"
)
_ABSENT: Any = object()
_encoder = msgspec.msgpack.Encoder(order="deterministic")
_encoder_as_it_is = msgspec.msgpack.Encoder()


def check_type(annotation: Any, where: str, path: str) -> None:
    """Raise `StateError` E4101, with the path, for a type that state cannot have."""
    _check(annotation, where, path, ())


def _check(annotation: Any, where: str, path: str, above: tuple[Any, ...]) -> None:
    if annotation in _PLAIN or annotation in above:
        return
    origin = typing.get_origin(annotation) or annotation
    arguments = [argument for argument in typing.get_args(annotation) if argument is not Ellipsis]
    if origin in (typing.Annotated, typing.Union, types.UnionType):
        for argument in arguments[:1] if origin is typing.Annotated else arguments:
            _check(argument, where, path, above)
    elif origin in _CONTAINERS:
        for argument in arguments:
            _check(argument, where, f"{path}[]", above)
    elif is_record(origin):
        for name, hint in typing.get_type_hints(origin, include_extras=True).items():
            if typing.get_origin(hint) is not typing.ClassVar:
                _check(hint, where, f"{path}.{name}", (*above, annotation))
    elif origin is not typing.Literal and not _is_enum(origin):
        raise StateError(
            "E4101", where, f"field '{path}' has type {_shown(annotation)}, which cannot be stored", _ALLOWED
        )


def check_key_type(annotation: Any, where: str, path: str) -> None:
    """Raise `StateError` E4101 for a type of keys that cannot be stored, or whose equal values may have different
    bytes.
    """
    origin = typing.get_origin(annotation) or annotation
    arguments = [argument for argument in typing.get_args(annotation) if argument is not Ellipsis]
    if origin is tuple and arguments:
        for argument in arguments:
            check_key_type(argument, where, path)
    elif annotation not in _KEYS and not _is_enum(origin):
        raise StateError(
            "E4101",
            where,
            f"field '{path}' has type {_shown(annotation)}, which cannot be a key",
            "Allowed: str, int, bytes, bool, date, UUID, enums and tuples of these",
        )


def _is_enum(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, enum.Enum)


def is_record(origin: Any) -> bool:
    """Whether `origin` is a class with fields: an event class, a struct or a dataclass."""
    return isinstance(origin, type) and (issubclass(origin, msgspec.Struct) or dataclasses.is_dataclass(origin))


def _shown(annotation: Any) -> str:
    name: str = getattr(annotation, "__qualname__", str(annotation))
    module = getattr(annotation, "__module__", "")
    return name if module in ("builtins", "typing", "") else f"{module}.{name}"


def is_immutable(annotation: Any) -> bool:
    """Whether a value of this type cannot change in place, so that only assignment changes state."""
    if annotation in _PLAIN:
        return True
    origin = typing.get_origin(annotation) or annotation
    arguments = [argument for argument in typing.get_args(annotation) if argument is not Ellipsis]
    if origin in (typing.Union, types.UnionType, tuple, frozenset):
        return all(is_immutable(argument) for argument in arguments)
    if origin is typing.Literal or _is_enum(origin):
        return True
    if isinstance(origin, type) and issubclass(origin, msgspec.Struct) and origin.__struct_config__.frozen:
        return all(is_immutable(hint) for hint in typing.get_type_hints(origin).values())
    return False


def encode(value: Any, where: str) -> bytes:
    """Return the bytes of a value. Raises `StateError` E4102 for a value that cannot be stored."""
    try:
        try:
            return _encoder.encode(value)
        except TypeError:  # a dict with keys that are not text has no deterministic order in msgspec
            return _encoder_as_it_is.encode(value)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise StateError("E4102", where, f"value cannot be stored: {error}", _ALLOWED) from error


class Codec(Generic[V]):
    """Encodes and decodes values of one declared type. It encodes only values that it can decode.

    Args:
        annotation: the type.
        where: names the part in errors.
    """

    def __init__(self, annotation: Any, where: str) -> None:
        self._where = where
        self._decoder: msgspec.msgpack.Decoder[V] = msgspec.msgpack.Decoder(annotation)

    def encode(self, value: V) -> bytes:
        """Return the bytes of the value.

        Raises:
            StateError: E4102 for a value that cannot be stored, E4103 for a value that is not of the declared type.
        """
        data = encode(value, self._where)
        try:
            self._decoder.decode(data)
        except msgspec.DecodeError as error:
            raise StateError(
                "E4103", self._where, f"value does not fit its annotation: {error}", "", "Assign only the declared type"
            ) from error
        return data

    def decode(self, data: bytes) -> V:
        """Return the value of these bytes. Raises `StateError` E4203 for bytes of a value of another type."""
        try:
            return self._decoder.decode(data)
        except msgspec.DecodeError as error:
            raise StateError(
                "E4203",
                self._where,
                f"stored state does not fit the class: {error}",
                "State is never guessed",
                "Keep the old fields, or define 'migrate_state(cls, version, data)' on the class",
            ) from error


class StateTable(MutableMapping[K, V]):
    """A mapping in the state of a persistent monitor. A checkpoint writes its changed keys only.

    Declare it as an annotation, `orders: StateTable[str, Order]`; the engine makes the table. Keys may be str, int,
    bytes, bool, `date`, `UUID`, enums and tuples of these. Values may have any type that state may have.

    A key counts as changed when it is assigned or deleted. A key whose value is mutable also counts as changed when the
    value is read, so that `table[key].append(x)` is not lost; frozen structs and plain values avoid this cost. Do not
    keep a mutable value beyond the handler. Do not assign another value to the attribute (`StateError` E4119): call
    `clear` and `update`. A restored value stays encoded until its first use.

    Changes become durable with the next checkpoint. If the handler that made them raises, the engine undoes them.
    Only the handlers of its monitor may use a table, in the thread of their context.

    Raises:
        StateError: E4102 or E4103 in the call that changes a key, if the key cannot be stored or is not of the declared
            type; for such a value they come when the handler has returned, and the handler counts as failed. E4203 at
            the first use of a restored value that is not of the declared type.
    """

    __slots__ = (
        "_changed",
        "_checked",
        "_cold",
        "_key_class",
        "_keys",
        "_live",
        "_owner",
        "_tracks_reads",
        "_undo",
        "_values",
    )

    def __init__(self, key_type: Any = str, value_type: Any = object, owner: str = "") -> None:
        self._owner = owner
        self._keys: Codec[K] = Codec(key_type, owner)
        self._values: Codec[V] = Codec(value_type, owner)
        self._key_class = key_type if isinstance(key_type, type) else None
        self._tracks_reads = not is_immutable(value_type)
        self._live: dict[K, V] = {}
        self._cold: dict[K, bytes] = {}
        self._changed: dict[K, bytes] = {}
        self._checked: dict[K, bytes] = {}
        self._undo: dict[K, tuple[bytes | None, bool]] | None = None

    @property
    def owner(self) -> str:
        """The name of this table in the store."""
        return self._owner

    def __getitem__(self, key: K) -> V:
        value = self._live[key] if key in self._live else self._warm(key)
        if self._tracks_reads:
            self._touch(key)
        return value

    def get(self, key: K, default: Any = None) -> Any:
        """The value of the key; `default` if the table does not have the key."""
        value = self._live.get(key, _ABSENT)
        if value is _ABSENT:
            if key not in self._cold:
                return default
            value = self._warm(key)
        if self._tracks_reads:
            self._touch(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._touch(key)
        if self._cold:
            self._cold.pop(key, None)
        self._live[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._touch(key)
        if self._cold.pop(key, None) is None:
            del self._live[key]

    def __contains__(self, key: object) -> bool:
        return key in self._live or key in self._cold

    def __iter__(self) -> Iterator[K]:
        yield from [*self._live, *self._cold]  # over a list, since a read moves a key from one dict to the other

    def __len__(self) -> int:
        return len(self._live) + len(self._cold)

    def _warm(self, key: K) -> V:
        value = self._values.decode(self._cold[key])
        del self._cold[key]
        self._live[key] = value
        return value

    def _touch(self, key: K) -> None:
        """Count a key as changed. It encodes the key, so that a key that cannot be stored fails the present call."""
        new = key not in self._changed
        if new or type(key) is not self._key_class:
            encoded = self._keys.encode(key)
        if self._undo is not None and key not in self._undo:
            self._undo[key] = (self._encoded(key), new)
        if new:
            self._changed[key] = encoded
        elif self._checked:
            self._checked.pop(key, None)

    def _encoded(self, key: K) -> bytes | None:
        if key in self._checked:
            return self._checked[key]
        if key in self._live:
            return self._values.encode(self._live[key])
        return self._cold.get(key)

    def clear(self) -> None:
        """Delete every key. The next checkpoint deletes the keys in the store; a handler that raises gets them back."""
        for key in (*self._live, *self._cold):
            self._touch(key)
        self._live.clear()
        self._cold.clear()

    def check_changes(self) -> None:
        """Check that the values that have changed since `begin_undo` can be stored. The next cut uses their bytes.

        Raises:
            StateError: E4102 or E4103 for a value that cannot be stored.
        """
        for key in self._undo or ():
            if key in self._live:
                self._checked[key] = self._values.encode(self._live[key])

    def touched(self) -> list[bytes]:
        """The keys, encoded, that have changed since `begin_undo`, except by changes that were undone."""
        return [self._keys.encode(key) for key in self._undo or ()]

    def begin_undo(self) -> None:
        """Begin to record changes for `undo`."""
        self._undo = {}

    def undo(self) -> None:
        """Undo all changes since `begin_undo`."""
        changes, self._undo = self._undo or {}, None
        for key, (data, new) in changes.items():
            for kept in (self._live, self._cold, self._checked):
                kept.pop(key, None)
            if data is not None:
                self._cold[key] = data
            if new:
                del self._changed[key]

    def load(self, stored: Mapping[bytes, bytes]) -> None:
        """Fill the table with its content in the store: encoded keys with encoded values. A start calls it."""
        self._cold = {self._keys.decode(key): value for key, value in stored.items()}

    def check_stored(self) -> None:
        """Check that stored values are of the declared type.

        The call checks only the first `CHECKED` values, so that a start with a large table is quick. This is enough to
        find a change of the declared type. A single value of another type raises an error when it is used.

        Raises:
            StateError: E4203 for a value of another type.
        """
        for data in itertools.islice(self._cold.values(), CHECKED):
            try:
                self._values.decode(data)
            except StateError as error:
                todo = "Declare a type that takes the stored values, too: a union, or new fields with default values"
                raise StateError(error.code, error.where, error.what, error.allowed, todo) from error

    def take_changes(self) -> list[StateEntry]:
        """Return the changes since the last call, encoded. Called at the cut."""
        entries = [StateEntry(self._owner, encoded, self._encoded(key)) for key, encoded in self._changed.items()]
        self._changed, self._checked = {}, {}
        return entries
