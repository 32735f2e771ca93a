"""The columns of a struct, event or dataclass: the Spark types of its fields. Pure."""

import enum
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from msgspec import inspect

from correlator.errors import ConfigError, quoted

_ALLOWED = (
    "Allowed: bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, UUID, enums, and list, dict with "
    "text keys, structs, events and dataclasses of these"
)
_PLAIN: dict[type[Any], str] = {
    inspect.BoolType: "BOOLEAN",
    inspect.IntType: "BIGINT",
    inspect.FloatType: "DOUBLE",
    inspect.StrType: "STRING",
    inspect.BytesType: "BINARY",
    inspect.DateTimeType: "TIMESTAMP",
    inspect.DateType: "DATE",
    inspect.TimeType: "TIME",
    inspect.TimeDeltaType: "INTERVAL DAY TO SECOND",
    inspect.DecimalType: "DECIMAL(38,18)",
    inspect.UUIDType: "STRING",
    inspect.EnumType: "STRING",
}
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_SPARK_TYPES: dict[str, type[Any]] = {
    "boolean": bool,
    "tinyint": int,
    "smallint": int,
    "int": int,
    "bigint": int,
    "float": float,
    "double": float,
    "string": str,
    "binary": bytes,
    "timestamp": datetime,
    "date": date,
}


def fields_of(cls: type[Any]) -> dict[str, bool]:
    """The names of the fields in order; for each, whether the field is required."""
    return {field.encode_name: field.required for field in _fields(cls)}


def ddl_of(cls: type[Any], where: str) -> str:
    """The columns as Spark DDL; raises `ConfigError` E1513 for a field of a type that no column can hold."""
    return ", ".join(f"`{field.encode_name}` {_ddl(field.type, f'{where}.{field.name}')}" for field in _fields(cls))


def refuse_no_number(function: str, argument: str, spark_type: str, where: str) -> None:
    """Raise `ConfigError` E1513 for an aggregate function that needs numbers, if its argument is of another type."""
    if function in ("sum", "avg") and not spark_type.startswith(_NUMBERS):
        what = f"{function} of {quoted(argument)}, whose type is {spark_type}"
        allowed = f"{function} takes tinyint, smallint, int, bigint, float, double, decimal"
        raise ConfigError("E1513", where, what, allowed, f"Convert it: {function}(CAST({argument} AS DOUBLE))")


def python_type(spark_type: str, where: str) -> type[Any]:
    """The Python type of a plain Spark type; raises `ConfigError` E1513 for any other type."""
    if spark_type.startswith("decimal"):
        return Decimal
    if spark_type not in _SPARK_TYPES:
        allowed = f"Allowed: {', '.join(_SPARK_TYPES)}, decimal"
        raise ConfigError("E1513", where, f"type {spark_type} cannot be aggregated", allowed)
    return _SPARK_TYPES[spark_type]


def _fields(cls: type[Any]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(cls)
    if not isinstance(info, inspect.StructType | inspect.DataclassType):
        raise ConfigError("E1513", cls.__name__, "has no fields", "Use an @event, a struct or a dataclass")
    return info.fields


def _ddl(info: inspect.Type, where: str) -> str:
    if type(info) is inspect.EnumType and not issubclass(info.cls, enum.StrEnum):
        return _ddl(inspect.type_info(type(next(iter(info.cls)).value)), where)
    match info:
        case inspect.UnionType(types=types):
            others = [kind for kind in types if not isinstance(kind, inspect.NoneType)]
            if len(others) == 1:
                return _ddl(others[0], where)
        case inspect.ListType(item_type=item) | inspect.SetType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"ARRAY<{_ddl(item, where)}>"
        case inspect.DictType(key_type=inspect.StrType(), value_type=value):
            return f"MAP<STRING, {_ddl(value, where)}>"
        case inspect.StructType(fields=fields) | inspect.DataclassType(fields=fields):
            parts = (f"`{field.encode_name}`: {_ddl(field.type, f'{where}.{field.name}')}" for field in fields)
            return f"STRUCT<{', '.join(parts)}>"
        case _ if type(info) in _PLAIN:
            return _PLAIN[type(info)]
    raise ConfigError("E1513", where, f"no column can hold a {type(info).__name__.removesuffix('Type')}", _ALLOWED)
