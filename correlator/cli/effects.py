"""Checks of a configuration file together with its code: finds settings and calls that work but have no effect."""

import contextlib

from correlator.configuration import Findings
from correlator.core.monitor import Monitor
from correlator.errors import ConfigError
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.names import resolve
from correlator.runtime.remarks import unheard, unsent, unstored


def check_effects(settings: PipelineFile, findings: Findings) -> None:
    """Warn of messages that no monitor waits for, of sends to nowhere, and of state that no checkpoint holds.

    In a file with pipelines or bridges and without monitors, a receiver that none of them names is an error (E1208).
    """
    if settings.readers and not settings.monitors:
        taken = settings.taken
        for index, receiver in enumerate(settings.receivers):
            if receiver.id not in taken:
                what = "delivers to nobody: no pipeline or bridge names it, and there is no monitor"
                todo = "Name it in a pipeline or bridge, or leave it out"
                findings.error("E1208", f"receivers[{index}]", what, "", todo)
        return
    if findings.unusable:
        return  # warnings would only repeat the consequences of the errors
    with contextlib.suppress(ConfigError, TypeError):  # `check_pipelines` reports imports of a wrong type
        classes = [resolve(monitor.type) for monitor in settings.monitors]
        if all(issubclass(cls, Monitor) for cls in classes):
            for remark in (
                *unheard(settings, classes, settings.readers.values()),
                *unsent(settings, classes),
                *unstored(classes),
            ):
                findings.warn(remark.code, remark.path, remark.what, remark.allowed, remark.todo)
