"""The places of the steps of a pipeline in their file, for messages."""

from collections.abc import Container
from dataclasses import dataclass, field

from correlator.configuration.problems import Places
from correlator.pipeline.spec import Step


def setting_path(pipeline: int, number: int, step: Step, setting: str, known: Container[str]) -> str:
    """The path of a setting of a step; the file may write a shorthand instead of the setting's name.

    Args:
        pipeline: the position of the pipeline in the file.
        number: the position of the step in the pipeline.
        step: the step.
        setting: the path of the setting within the step, empty for the step itself.
        known: the paths of the file.
    """
    place = f"pipelines[{pipeline}].steps[{number}].{step.word}"
    path = f"{place}.{setting}".rstrip(".")
    short = f"{place}{setting.removeprefix(getattr(step, 'shorthand', setting))}"
    return path if path in known or short not in known else short


@dataclass(frozen=True, slots=True)
class StepPlaces:
    """The places of the steps of one pipeline.

    Attributes:
        places: the places of the file; for settings that code has made, it is empty.
        pipeline: the position of the pipeline in the file.
    """

    places: Places = field(default_factory=Places)
    pipeline: int = 0

    def of(self, number: int, step: Step, setting: str) -> str:
        """The place of a setting of a step, `file:line:column`; empty if nothing is known."""
        return self.places.at(setting_path(self.pipeline, number, step, setting, self.places.positions))
