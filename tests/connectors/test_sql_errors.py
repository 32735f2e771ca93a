"""Which errors of a database concern one row, and which concern all: those of a row make it a dead letter."""

import sqlite3

import psycopg
import pymysql
import pytest
from pymysql.err import error_map
from sqlalchemy.exc import DBAPIError, IntegrityError

from connectors.sql.database import refuses_a_row

THIS_ROW, AGAIN, STOP = "this row", "again", "stop"
"""What to do: refuse the row; try again soon; wait until somebody has repaired something. The last two refuse no row."""

POSTGRES = {
    THIS_ROW: """
        22001 too long, 22003 out of range, 22007 no time, 22008 no such time, 22012 division by zero,
        22021 no such character, 22P02 no such value, 22P03 wrong bytes, 22P05 character without a translation,
        23000 constraint, 23001 restrict, 23502 null, 23503 foreign key, 23505 unique, 23514 check, 23P01 exclusion,
        44000 check option of a view, 54000 limit of the server, 54001 too complex, P0001 RAISE in a trigger
    """,
    AGAIN: """
        40001 serialization failure, 40P01 deadlock, 55P03 lock not available, 57014 canceled, 25P03 idle for too long,
        08006 connection failure, 53300 too many connections, 57P01 shutdown, 57P02 crash, 57P03 starting, 53200 memory
    """,
    STOP: """
        53100 disk full, 42501 no right, 25006 read only, 42P01 no table, 42703 no column, 42804 other type,
        58030 I/O error, XX001 damaged data, 28P01 password, 0A000 not supported, 55000 not in the right state
    """,
}
MYSQL = {
    THIS_ROW: """
        1048/23000 null, 1062/23000 unique, 1452/23000 foreign key, 4025/23000 check of MariaDB, 3819/HY000 check,
        1264/22003 out of range, 1690/22003 out of range, 1406/22001 too long, 1292/22007 no such time,
        1366/22007 no such value, 1366/HY000 no such value, 1365/22012 division by zero, 3140/22032 no JSON,
        1265/01000 cut, 1364/HY000 no default, 1118/42000 row too large, 1411/HY000 no such value of a function,
        1525/HY000 no such value, 1526/HY000 no such partition, 1369/44000 check option of a view of MariaDB,
        1369/HY000 check option of a view, 1644/45000 SIGNAL
    """,
    AGAIN: """
        1213/40001 deadlock, 1205/HY000 lock that lasts, 1040/08004 too many connections, 1053/08S01 shutdown,
        1317/70100 interrupted, 1927/70100 killed, 3572/HY000 lock with NOWAIT
    """,
    STOP: """
        1114/HY000 table full, 1021/HY000 disk full, 1142/42000 no right, 1044/42000 no right, 1290/HY000 read only,
        1146/42S02 no table, 1054/42S22 no column, 1030/HY000 error of the engine, 1045/28000 password,
        1064/42000 syntax
    """,
}
SQLITE = {
    THIS_ROW: "IntegrityError CHECK, DataError too big",
    AGAIN: "OperationalError database is locked",
    STOP: "OperationalError disk full, OperationalError readonly, DatabaseError malformed, InterfaceError misuse",
}


def entries(listed: str) -> list[tuple[str, str]]:
    """Code and meaning of each error."""
    found = [one.strip().partition(" ") for one in listed.replace("\n", " ").split(",")]
    return [(code, meaning) for code, _, meaning in found]


def postgres_error(state: str) -> DBAPIError:
    """What the driver raises, as SQLAlchemy wraps it."""
    return wrapped(psycopg.errors.lookup(state)("said"), psycopg.Error)


def mysql_error(code: str) -> DBAPIError:
    """See `postgres_error`; the driver has few classes, which it finds by the number."""
    number, _, state = code.partition("/")
    kind = error_map.get(int(number), pymysql.OperationalError)
    return wrapped(kind(int(number), "said", sqlstate=state), pymysql.Error)


def sqlite_error(name: str) -> DBAPIError:
    """See `postgres_error`."""
    return wrapped(getattr(sqlite3, name)("said"), sqlite3.Error)


def wrapped(error: Exception, base: type[Exception]) -> DBAPIError:
    found = DBAPIError.instance("INSERT", {}, error, base)
    assert isinstance(found, DBAPIError)
    return found


CASES = [
    pytest.param(make, code, what, id=f"{make.__name__}-{code}-{meaning}")
    for make, table in ((postgres_error, POSTGRES), (mysql_error, MYSQL), (sqlite_error, SQLITE))
    for what, listed in table.items()
    for code, meaning in entries(listed)
]


@pytest.mark.parametrize(("make", "code", "what"), CASES)
def test_an_error_and_what_it_concerns(make, code: str, what: str) -> None:
    assert refuses_a_row(make(code)) == (what == THIS_ROW)


def test_errors_that_the_drivers_raise_themselves() -> None:
    assert refuses_a_row(wrapped(psycopg.DataError("cannot contain NUL (0x00) bytes"), psycopg.Error))
    assert not refuses_a_row(wrapped(psycopg.OperationalError("the connection is lost"), psycopg.Error))
    assert not refuses_a_row(wrapped(pymysql.OperationalError(2013, "Lost connection"), pymysql.Error))
    assert refuses_a_row(IntegrityError("INSERT", {}, sqlite3.IntegrityError("UNIQUE")))
