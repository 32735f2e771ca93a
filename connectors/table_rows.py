"""Turns messages into rows: the JSON body fills the columns of the body, and the message fills the others."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from connectors.table_columns import Columns
from connectors.table_rules import holds
from correlator.events import Outgoing

Row = tuple[Any, ...]


class RowMaker:
    """Makes rows. It has no state, so equal messages make equal rows in each life."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.arrow = columns.arrow
        fields = [(f"c{at}", column.value | None, None) for at, column in enumerate(columns.of_body)]
        names = {f"c{at}": column.name for at, column in enumerate(columns.of_body)}
        body = msgspec.defstruct(
            "Body", fields, rename=names, forbid_unknown_fields=not columns.takes_extra_fields, gc=False
        )
        self._decode = msgspec.json.Decoder(body).decode
        self._decimals = [(at, one) for at, one in enumerate(columns.of_body) if pa.types.is_decimal128(one.arrow)]

    def row(self, out: Outgoing) -> Row:
        """Return the row of a message. Raises `ValueError` with the reason if the message does not fit the columns."""
        try:
            values = msgspec.structs.astuple(self._decode(out.message.body))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
            raise ValueError(f"the body does not fit the schema: {error}") from error
        for at, column in self._decimals:
            if values[at] is not None and not holds(column.arrow.precision, column.arrow.scale, values[at]):
                raise ValueError(f"the body does not fit the schema: `$.{column.name}` has too many digits")
        return (*values, *self._others(out))

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """Return the rows as a table."""
        columns = zip(*rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.arrow, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.arrow)

    def _others(self, out: Outgoing) -> Row:
        others: list[str | None] = []
        if self._columns.key:
            others.append(_text(out.message.key))
        if self._columns.unique_id:
            others.append(_text(f"{out.sequence}:{out.source}"))
        if self._columns.properties:
            others.append(_properties(out.message.properties))
        return tuple(others)


def _text(text: str | None) -> str | None:
    """Return the text. Raises `ValueError` if UTF-8 cannot encode it: application code may put any text into a key."""
    if text is not None:
        try:
            text.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise ValueError(f"the key is not a text: {error}") from error
    return text


def _properties(properties: Any) -> str:
    try:
        return msgspec.json.encode(properties).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"the properties are not JSON: {error}") from error
