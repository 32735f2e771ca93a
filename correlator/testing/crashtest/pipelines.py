"""The pipelines of a file at level `sim`: Spark starts and compiles them once, for all simulated engines."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from correlator.configuration import Places
from correlator.core.batch_context import Delivered, Effects
from correlator.core.steps import ConfiguredStep
from correlator.pipeline.processors import processors_of
from correlator.pipeline.spec import PipelineFile
from correlator.ports import Processor, StateView

_MASTER = "local[2]"


class Pipelines:
    """The open pipelines of a file.

    Spark computes each message once, since crash tests run the same messages again and again. The keyed steps run each
    time, because a crash could damage their state.

    Args:
        settings: the settings of the file.
        directory: the directory of the file.
        places: the places of the settings in the file.

    Raises `ConfigError` as `Processor.open`.
    """

    def __init__(self, settings: PipelineFile, directory: Path, places: Places) -> None:
        here = replace(settings, spark=replace(settings.spark, master=_MASTER, python=None))
        self._processors: list[Processor] = []
        try:
            for processor in processors_of(here, [str(directory.absolute())], places, repeats=True):
                processor.open()
                self._processors.append(processor)
        except BaseException:
            self.close()
            raise

    def of_engine(self) -> Sequence[Processor]:
        """Return the processors for one simulated engine, which may end without closing them."""
        return [_Borrowed(processor) for processor in self._processors]

    def close(self) -> None:
        """Close all pipelines; the last one stops Spark."""
        for processor in self._processors:
            processor.close()


class _Borrowed:
    """An open processor that stays open when an engine ends; see `ports.Processor`."""

    def __init__(self, processor: Processor) -> None:
        self.name = processor.name
        self.receivers = processor.receivers
        self.senders = processor.senders
        self.max_rows = processor.max_rows
        self.max_bytes = processor.max_bytes
        self.planned_s = 0.0  # simulated time stands still while Spark plans
        self._processor = processor

    @property
    def steps(self) -> Sequence[ConfiguredStep]:
        """Return the steps that keep state."""
        return self._processor.steps

    def open(self) -> None:
        """Do nothing: the processor is open already."""

    def process(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        """Compute the effects of a batch."""
        return self._processor.process(batch, state, engine_time)

    def conclude(self, state: StateView, engine_time: float) -> Effects:
        """Compute the effects of the end of all input."""
        return self._processor.conclude(state, engine_time)

    def close(self) -> None:
        """Do nothing: other engines use the processor."""
