"""`correlator test FILE`: runs the tests of a file, each through its pipelines and bridges, in memory."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from correlator.cli.checks import DEAD_LETTERS
from correlator.cli.failures import telling
from correlator.cli.loading import directory_of, importable, load_engine
from correlator.cli.output import shown, write_line
from correlator.configuration.files import ExpectedMessage, GivenMessage, InlineTest
from correlator.core.batch_context import Delivered, Effects
from correlator.core.bridge import bridges_of
from correlator.core.commit import StateEntry
from correlator.errors import TryAgain, UsageError
from correlator.events import Message
from correlator.pipeline.processors import processors_of, start_ahead
from correlator.ports import Processor
from correlator.runtime import phases

FAILED_STATUS = 1
MOST_ATTEMPTS = 5
"""If a pipeline asks this number of times in succession to be called again, its failure ends the command."""

Sent = dict[str, list[bytes]]
"""The output of a test: message bodies by sender id, and the reasons of dead letters under `dead_letters`."""


class KeptState:
    """The state of keyed steps during a test."""

    def __init__(self) -> None:
        self._values: dict[str, dict[bytes, bytes]] = {}

    def get(self, owner: str, key: bytes) -> bytes | None:
        """Return the value of a key, or `None`."""
        return self._values.get(owner, {}).get(key)

    def items(self, owner: str) -> Iterable[tuple[bytes, bytes]]:
        """Return all keys of an owner with their values."""
        return list(self._values.get(owner, {}).items())

    def keep(self, entries: Sequence[StateEntry]) -> None:
        """Apply changes of the state."""
        for owner, key, value in ((entry.owner, entry.key, entry.value) for entry in entries):
            if value is None:
                self._values.get(owner, {}).pop(key, None)
            else:
                self._values.setdefault(owner, {})[key] = value


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator test` with `app`, the Typer application of all commands."""
    app.command("test")(run_tests)


def run_tests(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file.", show_default=False)],
) -> None:
    """Run the tests that stand under 'tests:' in a file with pipelines or bridges, without opening a broker or a store.

    Each message of a test goes through every pipeline and bridge that takes from its receiver. Then the input ends, and
    windows close. The command prints 'ok' or 'failed' for each test, with the differences; it exits with 1 if a test
    failed.
    """
    with importable(file):
        loaded = load_engine(file)
        if not loaded.settings.tests or not loaded.settings.readers:
            what = "has no tests of pipelines or bridges"
            raise UsageError("E2015", str(file), what, "They stand under 'tests:'")
        with telling(loaded.secrets.redact):
            start_ahead(loaded.settings, ends_soon=True)
            pipelines = processors_of(loaded.settings, [directory_of(file)], loaded.places, ends_soon=True)
            failed = _run_all([*pipelines, *bridges_of(loaded.settings)], loaded.settings.tests)
    if failed:
        raise typer.Exit(FAILED_STATUS)


def _run_all(processors: Sequence[Processor], tests: Sequence[InlineTest]) -> int:
    """Run all tests; returns the number of failed ones."""
    failed = 0
    opened: list[Processor] = []
    try:
        for processor in processors:
            processor.open()
            opened.append(processor)
        for number, test in enumerate(tests, 1):
            phases.begin(f"test {number} of {len(tests)}: {test.name}")
            differences = compare(test.then, outcome(processors, test))
            failed += bool(differences)
            write_line(f"{'failed' if differences else 'ok'} {test.name}")
            for difference in differences:
                write_line(f"  {difference}")
    finally:
        for processor in opened:
            processor.close()
    return failed


def outcome(processors: Sequence[Processor], test: InlineTest) -> Sent:
    """Run one test; returns the output of all pipelines."""
    sent: Sent = {}
    given = [_delivered(one, number, processors[0].receivers[0]) for number, one in enumerate(test.given, 1)]
    for processor in processors:
        state = KeptState()
        batch = [one for one in given if one.receiver in processor.receivers]
        processed = _computed(partial(processor.process, batch, state, 0.0))
        state.keep(processed.state)
        _collect(processed, sent)
        _collect(_computed(partial(processor.conclude, state, 0.0)), sent)
    return sent


def _computed(compute: Callable[[], Effects]) -> Effects:
    """Compute effects; after `TryAgain` compute them again, like an engine."""
    for _ in range(MOST_ATTEMPTS - 1):
        try:
            return compute()
        except TryAgain as failure:
            time.sleep(failure.wait_s)
    return compute()


def compare(expected: Sequence[ExpectedMessage], sent: Sent) -> list[str]:
    """Return the differences between the expected messages and the output; empty if there are none."""
    wanted: dict[str, list[ExpectedMessage]] = {}
    for one in expected:
        wanted.setdefault(one.to, []).append(one)
    differences = []
    for to in sorted({*wanted, *sent}):
        differences += _compare_one(to, wanted.get(to, []), sent.get(to, []))
    return differences


def _compare_one(to: str, wanted: list[ExpectedMessage], sent: list[bytes]) -> list[str]:
    differences = []
    for number, (one, body) in enumerate(zip(wanted, sent, strict=False), 1):
        if difference := _difference(one, body):
            differences.append(f"{to} {number}: {difference}")
    differences += [f"{to}: missing {_described(one)}" for one in wanted[len(sent) :]]
    return differences + [f"{to}: not expected {shown(body)}" for body in sent[len(wanted) :]]


def _difference(wanted: ExpectedMessage, body: bytes) -> str:
    text = shown(body)
    if wanted.body is not None:
        same = text.startswith(wanted.body) if wanted.to == DEAD_LETTERS else text == shown(wanted.body)
        if not same:
            return f"expected {shown(wanted.body)}, got {text}"
    found = _fields(body) if wanted.row else {}
    wrong = {name: value for name, value in wanted.row.items() if found.get(name) != value}
    if not wrong:
        return ""
    return f"expected {_pairs(wrong)}, got {_pairs({name: found.get(name, 'nothing') for name in wrong})} in {text}"


def _described(wanted: ExpectedMessage) -> str:
    return _pairs(wanted.row) if wanted.body is None else shown(wanted.body)


def _pairs(row: Any) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in row.items()) or "a message"


def _fields(body: bytes) -> dict[str, str]:
    """Return the fields of a JSON object as text: strings as they are, other values as JSON."""
    try:
        decoded = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in decoded.items()
    }


def _delivered(given: str | GivenMessage, number: int, default: str) -> Delivered:
    message = GivenMessage(body=given) if isinstance(given, str) else given
    properties: dict[str, Any] = dict(message.properties)
    return Delivered(message.receiver or default, number, Message(message.body.encode(), properties, message.key))


def _collect(effects: Effects, sent: Sent) -> None:
    for sender, message in effects.sends:
        sent.setdefault(sender, []).append(message.body)
    for letter in effects.dead_letters:
        sent.setdefault(DEAD_LETTERS, []).append(letter.reason.encode())
