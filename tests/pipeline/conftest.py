"""One Spark session for all tests of pipelines, and an engine just large enough to run a processor."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from correlator.core.batch_context import Delivered, Effects
from correlator.core.commit import StateEntry
from correlator.errors import ConfigError
from correlator.events import DeadLetter, Message
from correlator.pipeline import compiler, processor
from correlator.pipeline.memory import Memory
from correlator.pipeline.processor import SparkProcessor
from correlator.pipeline.spark import SharedSession
from correlator.pipeline.spec import PipelineSettings, SparkSettings
from correlator.pipeline.static_checks import check_steps
from tests import spark_marks

CONFIG = Path(__file__).resolve().parents[2] / "config"
HERE = Path(__file__).resolve().parent
BATCHES_AS_LARGE = 2
FEW = 3


def pytest_collection_modifyitems(items):
    """Mark the tests that use the session."""
    spark_marks.mark(items, HERE, "session")


@pytest.fixture(scope="session")
def session():
    """The session that all processors of the run share."""
    shared = SharedSession(SparkSettings(master="local[2]"))
    shared.acquire()
    yield shared
    shared.release()


def refuse_disagreement(mistakes, error):
    """The first mistake is what the compiler refuses, or lies behind it."""
    (number,) = re.findall(r" step (\d+) ", error.where)
    refused = int(number) - 1
    assert all(one.step >= refused for one in mistakes), mistakes
    assert [one.error.code for one in mistakes if one.step == refused][:1] in ([], [error.code]), mistakes


@pytest.fixture(autouse=True)
def lint_agrees(monkeypatch):
    """Whatever a test compiles, the checks of `lint` agree: they find nothing, or what the compiler refuses."""

    def compile_checked(session, pipeline, *rest):
        mistakes = check_steps(pipeline).mistakes
        try:
            compiled = compiler.compile_pipeline(session, pipeline, *rest)
        except ConfigError as error:
            refuse_disagreement(mistakes, error)
            raise
        assert mistakes == []
        return compiled

    monkeypatch.setattr(processor, "compile_pipeline", compile_checked)


class TinyState:
    """Keyed state in a dictionary."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, bytes], bytes] = {}
        self.listed = 0

    def get(self, owner, key):
        return self.entries.get((owner, key))

    def items(self, owner) -> Iterator[tuple[bytes, bytes]]:
        self.listed += 1
        return iter([(key, value) for (whose, key), value in self.entries.items() if whose == owner])

    def apply(self, changes: Sequence[StateEntry]) -> None:
        for entry in changes:
            if entry.value is None:
                self.entries.pop((entry.owner, entry.key), None)
            else:
                assert self.entries.get((entry.owner, entry.key)) != entry.value, "unchanged state was returned"
                self.entries[entry.owner, entry.key] = entry.value


class TinyEngine:
    """Runs batches through a processor and keeps what it does.

    Each batch runs as a small one. The first two, of which the second finds state, also run as large ones, which takes
    four times as long. If the first has few messages, it also runs as in crash tests, which process the same messages
    again and again: Spark then computes each message alone.
    """

    def __init__(self, processor) -> None:
        self.processor = processor
        self.memory = Memory()
        self.state = TinyState()
        self.sends: dict[str, list[Message]] = {}
        self.dead: list[DeadLetter] = []
        self._next = 1
        self._batches = 0

    def run(self, *bodies: str | bytes | Message, receiver: str = "in", large: bool = True) -> Effects:
        batch = [Delivered(receiver, self._next + at, as_message(body)) for at, body in enumerate(bodies)]
        self._next += len(batch)
        repeated = large and self._batches == 0 and len(batch) <= FEW
        return self._apply(lambda: self.processor.process(batch, self.state, 7.5), large=large, repeated=repeated)

    def conclude(self) -> Effects:
        return self._apply(lambda: self.processor.conclude(self.state, 8.5))

    def bodies(self, sender: str = "out") -> list[str]:
        return [message.body.decode() for message in self.sends.get(sender, [])]

    def reasons(self) -> list[str]:
        return [letter.reason for letter in self.dead]

    def _apply(self, process: Callable[[], Effects], *, large: bool = True, repeated: bool = False) -> Effects:
        effects = process()
        if large and self._batches < BATCHES_AS_LARGE:
            with as_large(self.processor):
                assert process() == effects, "the same effects, byte for byte, whatever the size of a batch"
        if repeated:
            with remembering(self.processor, self.memory):
                for _ in ("executed", "remembered"):
                    assert process() == effects, "the same effects, byte for byte, if a message comes again"
        self._batches += 1
        for sender, message in effects.sends:
            self.sends.setdefault(sender, []).append(message)
        self.state.apply(effects.state)
        self.dead.extend(effects.dead_letters)
        return effects


@contextmanager
def as_large(processor: SparkProcessor) -> Iterator[None]:
    """Run all batches of a processor as large ones."""
    compiled = processor._opened
    small, compiled.small = compiled.small, None
    assert small is not None, "Spark is local"
    try:
        yield
    finally:
        compiled.small = small


@contextmanager
def remembering(processor: SparkProcessor, memory: Memory) -> Iterator[None]:
    """Let Spark see only messages that the memory does not have."""
    small = processor._opened.small
    assert small is not None, "Spark is local"
    small.memory = memory
    try:
        yield
    finally:
        small.memory = None


def as_message(body: str | bytes | Message) -> Message:
    if isinstance(body, Message):
        return body
    return Message(body.encode() if isinstance(body, str) else body)


@pytest.fixture
def engine(session):
    """Makes an engine for steps; its processor is closed at the end."""
    made = []

    def make(*steps, name: str = "p") -> TinyEngine:
        pipeline = PipelineSettings(name=name, from_=("in",), steps=steps)
        one = SparkProcessor(pipeline, session, [str(CONFIG), str(HERE)])
        one.open()
        made.append(one)
        return TinyEngine(one)

    yield make
    for one in made:
        one.close()
