"""Runs streaming queries to their end."""

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

_NOT_IN_TIME = "Python worker failed to connect back"
_MOST = 5


def finish(begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a query to its end, and return it.

    A query starts a process of Python, and fails if that takes ten seconds, which no setting changes. So on a busy machine
    it may have to begin again, with the same checkpoint, like any query that has failed.
    """
    for tries in range(1, _MOST + 1):
        query = begin()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if _NOT_IN_TIME not in str(error) or tries == _MOST:
                raise
        else:
            break
    return query
