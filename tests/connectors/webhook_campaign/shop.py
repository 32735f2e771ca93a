"""The process that is killed: the engine of the example.

The processes are forked from one that has imported what they need, and in which nothing else runs.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, cast

import structlog

from connectors.sql.sink import SqlSink
from correlator import Engine
from correlator.configuration import EngineFile, read_file
from tests.connectors.campaign.arming import forget_the_source
from tests.connectors.http_campaign import bridge as web
from tests.connectors.kafka_campaign import bridge as topics
from tests.connectors.sql_campaign import bridge as tables
from tests.docs.test_pages import ROOT

FILE = ROOT / "config" / "webhook-to-table-and-topic.yaml"
BEFORE_THE_ANSWER, BEHIND_THE_ANSWER = "before the answer", "behind the answer"
BEFORE_THE_TABLE, BEHIND_THE_TABLE = "before a commit of the table", "behind a commit of the table"
BEFORE_THE_TOPIC, WITHIN_THE_TOPIC = "before a commit of the topic", "within a commit of the topic"
BEHIND_THE_TOPIC = "behind a commit of the topic"
PLACES = (
    BEFORE_THE_ANSWER,
    BEHIND_THE_ANSWER,
    BEFORE_THE_TABLE,
    BEHIND_THE_TABLE,
    BEFORE_THE_TOPIC,
    WITHIN_THE_TOPIC,
    BEHIND_THE_TOPIC,
)
"""Where the engine may die. An answer to a client is given when its order is stored."""
_IN_TOPIC = {BEFORE_THE_TOPIC: "commit", WITHIN_THE_TOPIC: "committing", BEHIND_THE_TOPIC: "committed"}
_RETRY_S = 0.1
_LOOK_S = 0.02


class Death(NamedTuple):
    """Where the process kills itself: at a place that it has come to so often, and within a commit after a delay."""

    place: str
    number: int = 1
    delay_s: float = 0.0


def arm(death: Death) -> None:
    """Let the process kill itself."""
    if death.place in (BEFORE_THE_ANSWER, BEHIND_THE_ANSWER):
        web.arm(cast("web.Place", death.place), death.number)
    elif death.place in (BEFORE_THE_TABLE, BEHIND_THE_TABLE):
        tables.arm(death.number if death.place == BEFORE_THE_TABLE else -death.number, (tables.SINK,))
    else:
        topics.arm(topics.Death(_IN_TOPIC[death.place], death.number, death.delay_s))


def live(
    directory: Path,
    environment: Mapping[str, str],
    death: Death | None,
    parent: Connection,
    *,
    forgets: bool,
) -> None:
    """Run the engine of the example until it kills itself, or until the parent says so. It connects again sooner.

    Args:
        directory: the place of the log.
        environment: the variables of the file.
        death: where the process kills itself; `None` for nowhere.
        parent: tells and is told.
        forgets: whether the senders do not know what they have sent.
    """
    os.dup2(os.open(directory / "engine.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), sys.stderr.fileno())
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    os.environ.update(environment)
    if forgets:
        forget_the_source(SqlSink)
        topics.forget_the_number()
    if death is not None:
        arm(death)
    settings = replace(
        read_file(FILE, EngineFile).settings,
        connection_retry_interval=_RETRY_S,
        max_connection_retry_interval=_RETRY_S,
        status_interval=0.0,
    )
    with Engine(settings) as engine:
        parent.send("begun")
        while not parent.poll(_LOOK_S):
            engine.raise_failure()
