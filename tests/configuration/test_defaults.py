"""Default values satisfy the constraints of their settings, because the reader does not check them."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from correlator.configuration import constraints
from correlator.configuration.problems import Findings
from correlator.configuration.setting_types import SettingType, settings_of, type_of
from correlator.pipeline.spec import PipelineFile


def types_within(annotation: Any) -> Iterator[SettingType]:
    """Return the type of an annotation and of those inside it."""
    type_ = type_of(annotation)
    yield type_
    for argument in type_.arguments if type_.origin is not Literal else ():
        yield from types_within(argument)


def settings_within(cls: type, seen: set[type]) -> Iterator[type]:
    """Return this class and all settings classes inside it, each once."""
    if cls not in seen:
        seen.add(cls)
        yield cls
        for setting in settings_of(cls):
            for type_ in types_within(setting.annotation):
                if type_.is_settings:
                    yield from settings_within(type_.bare, seen)


ALL = sorted(settings_within(PipelineFile, set()), key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", ALL, ids=[cls.__name__ for cls in ALL])
def test_every_default_is_allowed(cls: type) -> None:
    findings = Findings("")
    for setting in settings_of(cls):
        if not setting.required:
            constraints._check(setting.default, type_of(setting.annotation), setting.key, findings)
    findings.raise_errors()


def test_the_classes_are_found() -> None:
    names = {cls.__name__ for cls in ALL}
    assert {"ReceiverSettings", "SenderSettings", "CheckpointSettings", "DuplicateDetectionSettings"} <= names
