"""The peers: how a life of each begins, where it works, and how its state is read when it has ended."""

import contextlib
import json
import pickle
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

from correlator import Message
from tests.peers import correlator_engine
from tests.peers.job import counts_of
from tests.peers.judge import Result
from tests.peers.sites import FileSite, KafkaSite, Order, RabbitSite, Servers, ShovelSite, Site

State = Callable[[Path], Mapping[str, int]]


def result_of(body: bytes) -> Result:
    """A result in JSON; an order that was only moved has no count."""
    content = json.loads(body)
    return Result(content["order"], content["customer"], content.get("count"))


def celery_result(body: bytes) -> Result:
    """The arguments of a task."""
    return Result(*json.loads(body)[0])


def celery_message(order: Order) -> Message:
    """An order as a task, by version 2 of Celery's protocol."""
    body = msgspec.json.encode([[order.order, order.customer], {}, {}])
    properties = {
        "amqp_content_type": "application/json",
        "amqp_content_encoding": "utf-8",
        "lang": "py",
        "task": "count",
        "id": str(order.order),
    }
    return Message(body, properties)


def bytewax_counts(directory: Path) -> dict[str, int]:
    """The latest snapshot of each customer in the recovery directory, which this campaign has made itself."""
    with contextlib.closing(sqlite3.connect(directory / "part-0.sqlite3")) as connection:
        rows = connection.execute(
            "SELECT state_key, ser_change FROM snaps WHERE step_id LIKE 'peer.count.%' ORDER BY snap_epoch"
        ).fetchall()
    return {customer: pickle.loads(change) for customer, change in rows if change is not None}


class Peer(NamedTuple):
    """A peer.

    Attributes:
        title: what it is.
        packages: the packages that it needs, beside those of the tests.
        words: the command of a life, behind the name of the interpreter; empty if it has no process.
        site: makes the place where it works.
        state: reads its state; `None` if it has none.
        remembers: whether its program recognises orders that it has counted.
        result: reads a result.
        prepare: a command to be run before the first life; `{directory}` stands for the place of the state.
    """

    title: str
    packages: Sequence[str]
    words: Sequence[str]
    site: Callable[[Servers, Path], Site] = RabbitSite
    state: State | None = counts_of
    remembers: bool = False
    result: Callable[[bytes], Result] = result_of
    prepare: Sequence[str] = ()

    def command(self, directory: Path, *, preparing: bool = False) -> list[str]:
        """The command of a life, or the one before the first life."""
        words = self.prepare if preparing else self.words
        return [sys.executable, *(word.replace("{directory}", str(directory)) for word in words)]

    @property
    def versions(self) -> dict[str, str]:
        """The versions of its packages."""
        return {package: version(package) for package in self.packages}

    @property
    def missing(self) -> str | None:
        """A package that it needs and that is not installed."""
        return next((package for package in self.packages if not find_spec(package.replace("-", "_"))), None)


_CORRELATOR = Peer(
    "correlator, EXACTLY_ONCE",
    ["correlator", "pika"],
    ["-m", "tests.peers.correlator_engine"],
    state=correlator_engine.counts_of,
)
_PIKA = Peer("pika, loop", ["pika"], ["-m", "tests.peers.pika_loop"])
_CELERY = Peer(
    "Celery",
    ["celery", "kombu", "amqp"],
    ["-m", "celery", "-A", "tests.peers.celery_worker", "worker", "--concurrency", "1", "--loglevel", "WARNING"],
    partial(RabbitSite, message_of=celery_message),
    result=celery_result,
)
_FASTSTREAM = Peer("FastStream", ["faststream", "aio-pika"], ["-m", "tests.peers.faststream_app"])
_SPARK = Peer("Spark, foreachBatch", ["pyspark", "pika"], ["-m", "tests.peers.spark_query"], FileSite)
_BYTEWAX = Peer(
    "Bytewax, recovery",
    ["bytewax", "confluent-kafka"],
    ["-m", "bytewax.run", "tests.peers.bytewax_flow:flow", "-r", "{directory}", "-s", "1", "-b", "0"],
    KafkaSite,
    bytewax_counts,
    prepare=["-m", "bytewax.recovery", "{directory}", "1"],
)
_SHOVEL = Peer("shovel of RabbitMQ, on-confirm", [], [], ShovelSite, state=None)


def _remembering(peer: Peer) -> Peer:
    return peer._replace(title=f"{peer.title}, idempotent", remembers=True)


PEERS: Mapping[str, Peer] = {
    "correlator": _CORRELATOR,
    "pika": _PIKA,
    "pika-idempotent": _remembering(_PIKA),
    "celery": _CELERY,
    "celery-idempotent": _remembering(_CELERY),
    "faststream": _FASTSTREAM,
    "faststream-idempotent": _remembering(_FASTSTREAM),
    "bytewax": _BYTEWAX,
    "shovel": _SHOVEL,
    "spark": _SPARK,
    "spark-idempotent": _remembering(_SPARK),
}
