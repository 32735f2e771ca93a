"""Configuration files through the reader of settings, `explain` and `lint`: an answer with a code, soon."""

import contextlib
import io
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self
from unittest import mock

import typer
import yaml

from correlator.cli.explain import explain
from correlator.cli.lint import lint
from correlator.configuration import document, read_file
from correlator.errors import CorrelatorError
from correlator.pipeline.spec import PipelineFile
from tests.fuzz import mutations
from tests.fuzz.outcome import MOST_S, Outcome

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"A": "value"}
USUAL_BYTES = 8 * 1024
"""A call may take `MOST_S` for a file of at most this size, and more for a larger one, in proportion."""
_HANG_S = 20.0
_BLOCK = re.compile(r"^```(yaml|python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MODULE = re.compile(r"# FILE (\w+\.py)\n")


class Hangs(BaseException):
    """A call has used much more CPU time than it may."""


def examples() -> list[str]:
    """The configuration files of the project, and the examples in its documentation."""
    files = sorted((ROOT / "config").rglob("*.yaml"))
    return [one.read_text() for one in files] + [text for language, text in _blocks() if language == "yaml"]


def modules() -> dict[str, str]:
    """The modules that examples name, by the names of their files."""
    named = ((_MODULE.match(text), text) for language, text in _blocks() if language != "yaml")
    return {found[1]: text for found, text in named if found is not None}


def _blocks() -> Iterator[tuple[str, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield from _BLOCK.findall(page.read_text())


class Parsed:
    """The parser's events of a text, for all readers of this text: PyYAML needs most of the time of a case."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self.text = loader.buffer
        self._loader = loader
        self._found: list[yaml.Event | Exception | None] = []

    def event(self, number: int) -> yaml.Event | None:
        """Return an event or the end, or raise the parser's error."""
        if number == len(self._found):
            try:
                self._found.append(self._loader.get_event())  # type: ignore[no-untyped-call]
            except (yaml.YAMLError, ValueError, OverflowError) as error:
                self._found.append(error)
        event = self._found[number]
        if isinstance(event, Exception):
            raise event
        return event


class FilesCampaign:
    """Mutations of the examples."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._texts = examples()
        values = (_loaded(text) for text in self._texts)
        self._values = [one for one in values if isinstance(one, dict)]
        self._parsed: Parsed | None = None

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="correlator-fuzz-"))
        self._modules = Path(tempfile.mkdtemp(prefix="correlator-fuzz-"))
        for name, text in modules().items():
            (self._modules / name).write_text(text)
        self._file = self._directory / "engine.yaml"
        self._file.touch(0o600)
        self._before = (
            Path.cwd(),
            signal.signal(signal.SIGVTALRM, _hangs),
            dict(os.environ),
            [*sys.path],
            {*sys.modules},
        )
        self._parser = mock.patch.object(document, "_next_event", self._next_event)
        self._parser.start()
        sys.path += [str(self._modules), str(ROOT / "config"), str(ROOT / "config" / "crash-tests")]
        os.chdir(self._directory)
        os.environ.update(ENVIRONMENT)
        for text in self._texts:  # a first call may import what the others use
            self._file.write_text(text)
            for call in self._calls():
                self._outcome_of(call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parser.stop()
        place, handler, environment, sys.path[:], loaded = self._before
        for name in {*sys.modules} - loaded:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(self._modules):
                del sys.modules[name]
        shutil.rmtree(self._modules)
        os.chdir(place)
        signal.signal(signal.SIGVTALRM, handler)
        os.environ.clear()
        os.environ.update(environment)
        shutil.rmtree(self._directory)

    def run(self, number: int, outcome: Outcome) -> None:
        """Make a file, and let each reader read it."""
        content = mutations.file(Random(f"{self._seed}/{number}"), self._texts, self._values)
        self._file.write_bytes(content)
        outcome.cases += 1
        may_s = MOST_S * max(1.0, len(content) / USUAL_BYTES)
        for call in self._calls():
            answer, used_s = self._outcome_of(call)
            outcome.answers[answer.partition(" ")[0]] += 1
            name = getattr(call, "__name__", "")
            if answer.startswith("!"):
                outcome.violated(number, f"{name}: {answer}")
            what = f"{name} of {len(content)} bytes ({answer})"
            outcome.timed(number, what, may_s, used_s, lambda call=call: self._outcome_of(call)[1])
        left = [one.name for one in self._directory.iterdir() if one != self._file]
        if left:
            outcome.violated(number, f"files were made: {left}")

    def _next_event(self, loader: Any) -> yaml.Event | None:
        """Replaces the function of the reader: the first reader of a text parses for the others."""
        if not hasattr(loader, "parsed"):
            if self._parsed is None or self._parsed.text != loader.buffer:
                self._parsed = Parsed(loader)
            loader.parsed, loader.number = self._parsed, -1
        loader.number += 1
        return loader.parsed.event(loader.number)  # type: ignore[no-any-return]

    def _calls(self) -> Iterator[Callable[[], Any]]:
        def settings() -> object:
            return read_file(self._file, PipelineFile, environment=ENVIRONMENT)

        def explained() -> object:
            return explain(str(self._file))

        def linted() -> object:
            return lint([self._file])

        yield from (settings, explained, linted)

    def _outcome_of(self, call: Callable[[], Any]) -> tuple[str, float]:
        """The answer of a call, and its CPU seconds."""
        said = io.StringIO()
        signal.setitimer(signal.ITIMER_VIRTUAL, _HANG_S)
        began = time.thread_time()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                call()
            answer = "ok"
        except typer.Exit as end:
            found = re.match(r"[EWI]\d{4}", said.getvalue())
            answer = found[0] if found else f"!exit {end.exit_code} without a code"
        except CorrelatorError as error:
            answer = error.code if re.fullmatch(r"E\d{4}", error.code) else f"!code {error.code}"
        except Hangs:
            answer = "!hangs"
        except Exception as error:  # noqa: BLE001  # what the campaign looks for
            answer = f"!{type(error).__name__}: {str(error)[:300]}"
        used_s = time.thread_time() - began
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if "Traceback" in said.getvalue():
            answer = "!a traceback on the screen"
        return answer, used_s


def _loaded(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return None


def _hangs(*_: object) -> None:
    raise Hangs
