"""A statement of the user that a sender executes for each message: its parameters are fields of the body."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa
from msgspec import Meta
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from connectors.sql.database import reason_of
from connectors.sql.mysql import check_targets, explain_statement
from correlator.errors import ConfigError, ConnectionLost, quoted
from correlator.events import Message

_QUOTED = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | \$(\w*)\$.*?\$\1\$ | --[^\n]* | /\*.*?\*/""", re.DOTALL | re.VERBOSE
)
"""Parts of a statement that contain no keyword or parameter: texts, quoted names, comments."""
_ALLOWED = "INSERT, UPDATE, DELETE, MERGE, or WITH before one of them"
_CHANGES = re.compile(
    r"\s*(?:insert|update|delete|merge|with\b.*\b(?:insert|update|delete|merge))\b", re.IGNORECASE | re.DOTALL
)
_ROLLS_BACK = re.compile(r"\bor\s+rollback\b", re.IGNORECASE)
_Scalar = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float | str | bool | None


def check_statement(where: str, statement: str) -> None:
    """Check the option `statement`. Raises `ConfigError` E1022 if it is wrong.

    It must be one statement that changes rows and has parameters, and must leave the transaction to the sink.
    """
    plain = _QUOTED.sub(" ", statement)
    shown = quoted(statement)
    if not _CHANGES.match(plain):
        raise ConfigError("E1022", where, f"{shown} is not a statement that changes rows", _ALLOWED)
    if ";" in plain.rstrip().removesuffix(";"):
        raise ConfigError("E1022", where, f"{shown} is more than one statement", "One statement for each message")
    if _ROLLS_BACK.search(plain):
        what = f"{shown} would roll back the messages before it"
        raise ConfigError("E1022", where, what, "Leave OR ROLLBACK out: a row that is refused is refused alone")
    names = _names(_clause(statement))
    for name in re.findall(r"(?<!:):(\w+)", plain):
        if name not in names:
            todo = f"Write CAST(:{name} AS type)"
            raise ConfigError("E1022", where, f"parameter {quoted(f':{name}')} is followed by a colon", "", todo)
    if not names:
        todo = "Write :name for the field 'name' of the body"
        raise ConfigError("E1022", where, f"{shown} has no parameter: it would do the same for each message", "", todo)


class StatementRows:
    """Reads the parameters of the statement from messages.

    Args:
        connection: an open connection, which checks the statement.
        where: the place of the sender.
        statement: see `check_statement`.
        takes_extra_fields: whether a body may have fields that are not parameters.

    Raises:
        ConnectionLost: E7041, the database does not accept the statement.
    """

    def __init__(self, connection: Connection, where: str, statement: str, *, takes_extra_fields: bool) -> None:
        self._clause = _clause(statement)
        self._as_texts = connection.dialect.name == "postgresql"
        names = _names(self._clause)
        fields: list[tuple[str, Any]] = [(f"p{at}", _Scalar) for at in range(len(names))]
        renamed = {f"p{at}": name for at, name in enumerate(names)}
        body = msgspec.defstruct("Body", fields, rename=renamed, forbid_unknown_fields=not takes_extra_fields, gc=False)
        self._names = names
        self._decode = msgspec.json.Decoder(body).decode
        try:
            connection.execute(sa.text(f"{_explain(connection)} {self._clause.text}"), dict.fromkeys(names))
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            what = f"the database does not accept the statement: {reason_of(error)}"
            raise ConnectionLost("E7041", where, what) from error
        if connection.dialect.name == "mysql":
            check_targets(connection, where, statement)

    def row(self, message: Message) -> dict[str, Any]:
        """Return the parameters of a message. Raises `ValueError` with the reason if the body does not contain them."""
        try:
            values = msgspec.structs.astuple(self._decode(message.body))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
            raise ValueError(f"the body does not fit the statement: {error}") from error
        if self._as_texts:
            values = tuple(map(_text, values))
        return dict(zip(self._names, values, strict=True))

    def statement(self, names: tuple[str, ...]) -> sa.Executable:
        """Return the statement that takes these parameters."""
        del names
        return self._clause


def _explain(connection: Connection) -> str:
    """Return the words that let the database check a statement without executing it."""
    return explain_statement(connection) if connection.dialect.name == "mysql" else "EXPLAIN"


def _clause(statement: str) -> sa.TextClause:
    """Return the statement for SQLAlchemy; a colon within a text, a quoted name or a comment begins no parameter."""
    return sa.text(_QUOTED.sub(lambda part: re.sub(r"(?<!\\):", r"\\:", part[0]), statement.strip().removesuffix(";")))


def _names(clause: sa.TextClause) -> Sequence[str]:
    return list(clause.compile().params)


def _text(value: str | float | None) -> str | None:
    """Return a value in a form for which PostgreSQL takes the type of the parameter from the statement.

    So the statement does not fail as a whole because one body has a number where others have a text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    return value if value is None or isinstance(value, str) else repr(value)
