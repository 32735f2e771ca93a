"""Reads and writes structured bodies of JMS messages for applications: streams and maps as in Starlight for JMS.

The property `jms_message_type` of a message names the kind of its body. This module reads and writes `stream` and
`map`. `text` is UTF-8, and `bytes` have any content. `object` is a serialized Java object and stays bytes: classes that
a message names are never loaded.

Numbers become the Python type that fits. To write a type of Java that Python does not have, name it:
`write_map({"port": Short(80)})`. Sizes are checked before memory is allocated.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from connectors.singles import shortest
from correlator.errors import quoted

Value = None | bool | int | float | str | bytes
"""The types of values in streams and maps."""


class Byte(int):
    """A whole number of 8 bits."""


class Short(int):
    """A whole number of 16 bits."""


class Long(int):
    """A whole number of 64 bits, even if 32 bits are enough."""


class Single(float):
    """A floating-point number of 32 bits: `float` in Java."""


class Char(str):
    """One character, of at most 16 bits."""

    __slots__ = ()


_UNSIGNED_16 = struct.Struct(">H")
_SIGNED_32 = struct.Struct(">i")
_UNSIGNED_64 = struct.Struct(">Q")
_LONGEST_TEXT = 65535


class _Type(NamedTuple):
    """A type of fixed size.

    Attributes:
        tag: the byte before a value of this type in a stream.
        java: name of the Java class of such a value in a map.
        uid: version of this class in hexadecimal digits (`serialVersionUID`); Java refuses another version.
        code: the letter of the type in the description of the class.
        form: encoding of the value, in streams and in maps.
    """

    tag: int
    java: str
    uid: str
    code: str
    form: struct.Struct


_BOOLEAN = _Type(1, "java.lang.Boolean", "cd207280d59cfaee", "Z", struct.Struct("?"))
_INTEGER = _Type(3, "java.lang.Integer", "12e2a0a4f7818738", "I", _SIGNED_32)
_SHORT = _Type(4, "java.lang.Short", "684d37133460da52", "S", struct.Struct(">h"))
_LONG = _Type(5, "java.lang.Long", "3b8be490cc8f23df", "J", struct.Struct(">q"))
_FLOAT = _Type(6, "java.lang.Float", "daedc9a2db3cf0ec", "F", struct.Struct(">f"))
_DOUBLE = _Type(7, "java.lang.Double", "80b3c24a296bfb04", "D", struct.Struct(">d"))
_BYTE = _Type(8, "java.lang.Byte", "9c4e6084ee50f51c", "B", struct.Struct(">b"))
_CHARACTER = _Type(9, "java.lang.Character", "348b47d96b1a2678", "C", _UNSIGNED_16)
_TYPES = (_BOOLEAN, _INTEGER, _SHORT, _LONG, _FLOAT, _DOUBLE, _BYTE, _CHARACTER)
_OF_TAG = {one.tag: one for one in _TYPES}
_TEXT_TAG, _BYTES_TAG, _NULL_TAG = 2, 10, 11


def _type_of(value: Value) -> _Type | None:
    """Return the type of a value of fixed size; `None` for text, bytes and `None`."""
    for python, its_type in _OF_PYTHON:
        if isinstance(value, python):
            return its_type
    if isinstance(value, int):
        return _INTEGER if -(2**31) <= value < 2**31 else _LONG
    return None


_OF_PYTHON: tuple[tuple[type, _Type], ...] = (
    (bool, _BOOLEAN),
    (Byte, _BYTE),
    (Short, _SHORT),
    (Long, _LONG),
    (Single, _FLOAT),
    (float, _DOUBLE),
    (Char, _CHARACTER),
)


def _pack(its_type: _Type, value: Any) -> bytes:
    try:
        if its_type is _CHARACTER:
            value = ord(value)
        return its_type.form.pack(value)
    except (struct.error, OverflowError, TypeError) as error:
        raise ValueError(f"{value!r} is not a {its_type.java}") from error


def _unpack(its_type: _Type, data: bytes) -> Value:
    (value,) = its_type.form.unpack(data)
    if its_type is _FLOAT:
        return shortest(value)
    return chr(value) if its_type is _CHARACTER else value


def _encode_text(text: str) -> bytes:
    """Encode text in Java's modified UTF-8.

    The character zero has two bytes. A character of more than 16 bits becomes two surrogates of three bytes each.
    Unpaired surrogates are kept, as in Java, so that any text from Java can be written back unchanged.
    """
    if text.isascii() and "\0" not in text:
        return text.encode()
    encoded = text.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    return "".join(map(chr, units)).encode(errors="surrogatepass").replace(b"\0", b"\xc0\x80")


def _decode_text(data: bytes) -> str:
    if data.isascii():
        return data.decode()
    text = data.replace(b"\xc0\x80", b"\0").decode(errors="surrogatepass")
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def _short_text(text: str) -> bytes:
    encoded = _encode_text(text)
    if len(encoded) > _LONGEST_TEXT:
        raise ValueError(f"a text of {len(encoded)} bytes is longer than {_LONGEST_TEXT}")
    return _UNSIGNED_16.pack(len(encoded)) + encoded


class _Input:
    """A reader of bytes. Raises `ValueError` if there are not enough of them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._data)

    def take(self, count: int) -> bytes:
        end = self._at + count
        if not self._at <= end <= len(self._data):
            raise ValueError(f"{count} bytes at {self._at} are missing: there are {len(self._data)} in all")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def take_at_most(self, count: int) -> bytes:
        return self.take(min(count, len(self._data) - self._at))

    def take_if(self, expected: bytes) -> bool:
        """Take these bytes if they come next; return whether they did."""
        found = self._data.startswith(expected, self._at)
        self._at += len(expected) * found
        return found

    def octet(self) -> int:
        return self.take(1)[0]


def _number(form: struct.Struct, take: Callable[[int], bytes]) -> int:
    (number,) = form.unpack(take(form.size))
    return number  # type: ignore[no-any-return]


def _take_text(take: Callable[[int], bytes]) -> str:
    return _decode_text(take(_number(_UNSIGNED_16, take)))


def _take_bytes(take: Callable[[int], bytes]) -> bytes:
    return take(_number(_SIGNED_32, take))


def _type_error(value: object) -> TypeError:
    return TypeError(f"a {type(value).__name__} cannot be in the body of a JMS message")


# --- streams ---


def read_stream(body: bytes) -> list[Value]:
    """Read the values of a body of kind `stream`. Raises `ValueError` for any other body."""
    data = _Input(body)
    values: list[Value] = []
    while not data.is_empty:
        values.append(_stream_value(data))
    return values


def _stream_value(data: _Input) -> Value:
    tag = data.octet()
    its_type = _OF_TAG.get(tag)
    if its_type is not None:
        return _unpack(its_type, data.take(its_type.form.size))
    if tag == _TEXT_TAG:
        return _take_text(data.take)
    if tag == _BYTES_TAG:
        return _take_bytes(data.take)
    if tag == _NULL_TAG:
        return None
    raise ValueError(f"a stream holds no values of the type {tag}")


def write_stream(values: Iterable[Value]) -> bytes:
    """Make a body of kind `stream`.

    Raises `ValueError` for values that a stream cannot hold (whole numbers of more than 64 bits, texts of more than
    65,535 bytes), `TypeError` for other types.
    """
    return b"".join(map(_encoded_stream_value, values))


def _encoded_stream_value(value: Value) -> bytes:
    its_type = _type_of(value)
    if its_type is not None:
        return bytes((its_type.tag,)) + _pack(its_type, value)
    if isinstance(value, str):
        return bytes((_TEXT_TAG,)) + _short_text(value)
    if isinstance(value, bytes):
        return bytes((_BYTES_TAG,)) + _SIGNED_32.pack(len(value)) + value
    if value is None:
        return bytes((_NULL_TAG,))
    raise _type_error(value)


# --- maps: the number of entries and the names are blocks of data; the values are objects that Java has serialized ---

SERIALIZED = bytes.fromhex("aced0005")
"""First bytes of every body that Java has serialized: maps and objects."""
_NULL, _REFERENCE, _CLASS, _OBJECT, _TEXT, _ARRAY, _DATA, _LONG_DATA, _LONG_TEXT = (
    bytes((tag,)) for tag in (0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x77, 0x7A, 0x7C)
)
_FIRST_HANDLE = 0x7E0000
"""The handle that refers to the first class, object or text of a body; each later one has the next number."""
_LARGEST_BLOCK = 1024
_SHORTEST_LONG_BLOCK = 256


class _Class(NamedTuple):
    """The encoded description of a Java class, and the class that it extends."""

    description: bytes
    extends: "_Class | None"


def _described(name: str, uid: str, fields: str, extends: _Class | None) -> _Class:
    return _Class(_CLASS + _short_text(name) + bytes.fromhex(f"{uid}02{fields}78"), extends)


def _boxed(one: _Type) -> _Class:
    field = f"0001{ord(one.code):02x}{_short_text('value').hex()}"
    return _described(one.java, one.uid, field, None if one in (_BOOLEAN, _CHARACTER) else _NUMBER_CLASS)


_NUMBER_CLASS = _described("java.lang.Number", "86ac951d0b94e08b", "0000", None)
_BYTES_CLASS = _described("[B", "acf317f8060854e0", "0000", None)
_CLASSES = {one: _boxed(one) for one in _TYPES}
_TYPE_OF_CLASS = {its_class: one for one, its_class in _CLASSES.items()}


def read_map(body: bytes) -> dict[str, Value]:
    """Read the entries of a body of kind `map`; an empty body is an empty map.

    Raises `ValueError` for any other body, and for a map with objects that JMS does not allow in a map.
    """
    return _MapReader(body).read() if body else {}


class _MapReader:
    def __init__(self, body: bytes) -> None:
        self._data = _Input(body)
        self._block = _Input(b"")
        self._known: list[Any] = []
        """The classes and values of the body so far, at the position `handle - _FIRST_HANDLE`."""

    def read(self) -> dict[str, Value]:
        if not self._data.take_if(SERIALIZED):
            raise ValueError("it does not begin as Java writes objects")
        entries: dict[str, Value] = {}
        for _ in range(self._count()):
            name = _take_text(self._take)
            if not self._block.is_empty:
                raise ValueError(f"there is data between the name {quoted(name)} and its value")
            entries[name] = self._value()
        if not (self._block.is_empty and self._data.is_empty):
            raise ValueError("there are bytes after the last entry")
        return entries

    def _count(self) -> int:
        count = _number(_SIGNED_32, self._take)
        if count < 0:
            raise ValueError(f"{count} is not a number of entries")
        return count

    def _take(self, count: int) -> bytes:
        """Take bytes of data, which may be spread over several blocks."""
        taken = bytearray()
        while len(taken) < count:
            if self._block.is_empty:
                self._block = _Input(self._next_block())
            taken += self._block.take_at_most(count - len(taken))
        return bytes(taken)

    def _next_block(self) -> bytes:
        take = self._data.take
        if self._data.take_if(_DATA):
            return take(self._data.octet())
        if self._data.take_if(_LONG_DATA):
            return take(_number(_SIGNED_32, take))
        raise ValueError("there is no data where a name should be")

    def _value(self) -> Value:
        tag = self._data.take(1)
        if tag == _NULL:
            return None
        if tag == _REFERENCE:
            return self._referred(str | bytes | bool | int | float)  # type: ignore[no-any-return]
        value = self._new_value(tag)
        self._known.append(value)
        return value

    def _new_value(self, tag: bytes) -> Value:
        take = self._data.take
        if tag == _TEXT:
            return _take_text(take)
        if tag == _LONG_TEXT:
            return _decode_text(take(_number(_UNSIGNED_64, take)))
        if tag == _ARRAY and self._class() == _BYTES_CLASS:
            return _take_bytes(take)
        its_type = _TYPE_OF_CLASS.get(self._class()) if tag == _OBJECT else None
        if its_type is None:
            raise ValueError(f"a map holds no values of the type {tag.hex()}")
        return _unpack(its_type, take(its_type.form.size))

    def _class(self) -> _Class:
        if self._data.take_if(_REFERENCE):
            return self._referred(_Class)  # type: ignore[no-any-return]
        for its_class in (*_TYPE_OF_CLASS, _BYTES_CLASS):
            if self._take_description(its_class):
                return its_class
        raise ValueError("a map holds no objects of such a class")

    def _take_description(self, its_class: _Class) -> bool:
        """Take the description of a class, and of the class that it extends, if they come next; return
        whether they did.
        """
        if not self._data.take_if(its_class.description):
            return False
        self._known.append(its_class)
        if its_class.extends is None:
            is_right = self._data.take_if(_NULL)
        elif self._data.take_if(_REFERENCE):
            is_right = self._referred(_Class) == its_class.extends
        else:
            is_right = self._take_description(its_class.extends)
        if not is_right:
            raise ValueError("a class extends an unexpected class")
        return True

    def _referred(self, kind: Any) -> Any:
        place = _number(_SIGNED_32, self._data.take) - _FIRST_HANDLE
        if not 0 <= place < len(self._known) or not isinstance(self._known[place], kind):
            raise ValueError(f"no earlier class or value has the handle {place}, or it is of another type")
        return self._known[place]


def write_map(entries: Mapping[str, Value]) -> bytes:
    """Make a body of kind `map`; an empty map has an empty body.

    Raises `ValueError` for names and values that a map cannot hold (whole numbers of more than 64 bits, names of more
    than 65,535 bytes), `TypeError` for other types.
    """
    if not entries:
        return b""
    writer = _MapWriter()
    data = _SIGNED_32.pack(len(entries))
    for name, value in entries.items():
        if not isinstance(name, str):
            raise _type_error(name)
        writer.data(data + _short_text(name))
        writer.value(value)
        data = b""
    return writer.written()


class _MapWriter:
    def __init__(self) -> None:
        self._parts = [SERIALIZED]
        self._handles: dict[_Class, int] = {}
        self._next_handle = _FIRST_HANDLE

    def written(self) -> bytes:
        return b"".join(self._parts)

    def data(self, data: bytes) -> None:
        for start in range(0, len(data), _LARGEST_BLOCK):
            block = data[start : start + _LARGEST_BLOCK]
            is_long = len(block) >= _SHORTEST_LONG_BLOCK
            self._parts.append(_LONG_DATA + _SIGNED_32.pack(len(block)) if is_long else _DATA + bytes((len(block),)))
            self._parts.append(block)

    def value(self, value: Value) -> None:
        if value is None:
            self._parts.append(_NULL)
            return
        its_type = _type_of(value)
        if its_type is not None:
            self._parts.append(_OBJECT)
            self._class(_CLASSES[its_type])
            self._parts.append(_pack(its_type, value))
        elif isinstance(value, str):
            self._text(_encode_text(value))
        elif isinstance(value, bytes):
            self._parts.append(_ARRAY)
            self._class(_BYTES_CLASS)
            self._parts.append(_SIGNED_32.pack(len(value)) + value)
        else:
            raise _type_error(value)
        self._next_handle += 1

    def _text(self, encoded: bytes) -> None:
        is_long = len(encoded) > _LONGEST_TEXT
        form = _UNSIGNED_64 if is_long else _UNSIGNED_16
        self._parts.append((_LONG_TEXT if is_long else _TEXT) + form.pack(len(encoded)) + encoded)

    def _class(self, its_class: _Class) -> None:
        """Write the description of a class and of the classes that it extends; for a known class, only its handle."""
        next_class: _Class | None = its_class
        while next_class is not None:
            handle = self._handles.get(next_class)
            if handle is not None:
                self._parts.append(_REFERENCE + _SIGNED_32.pack(handle))
                return
            self._handles[next_class] = self._next_handle
            self._next_handle += 1
            self._parts.append(next_class.description)
            next_class = next_class.extends
        self._parts.append(_NULL)
