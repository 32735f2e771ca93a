"""Values that nobody gave pass the rules without being looked at."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from correlator.configuration import constraints
from correlator.configuration.kinds import Kind, kind_of, settings_of
from correlator.configuration.problems import Findings
from correlator.pipeline.spec import PipelineFile


def kinds_within(annotation: Any) -> Iterator[Kind]:
    """All that an annotation is made of."""
    kind = kind_of(annotation)
    yield kind
    for argument in kind.arguments if kind.origin is not Literal else ():
        yield from kinds_within(argument)


def settings_within(cls: type, seen: set[type]) -> Iterator[type]:
    """This class and all whose settings its settings hold, each once."""
    if cls not in seen:
        seen.add(cls)
        yield cls
        for setting in settings_of(cls):
            for kind in kinds_within(setting.annotation):
                if kind.is_settings:
                    yield from settings_within(kind.bare, seen)


ALL = sorted(settings_within(PipelineFile, set()), key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", ALL, ids=[cls.__name__ for cls in ALL])
def test_every_default_is_allowed(cls: type) -> None:
    findings = Findings("")
    for setting in settings_of(cls):
        if not setting.required:
            constraints._check(setting.default, kind_of(setting.annotation), setting.key, findings)
    findings.raise_errors()


def test_the_classes_are_found() -> None:
    names = {cls.__name__ for cls in ALL}
    assert {"ReceiverSettings", "SenderSettings", "CheckpointSettings", "DuplicateDetectionSettings"} <= names
