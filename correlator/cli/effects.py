"""Checks of a configuration file together with its code: finds what would work, but have no effect."""

import contextlib

from correlator.configuration import Findings
from correlator.core.monitor import Monitor
from correlator.errors import ConfigError
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.names import resolve
from correlator.runtime.remarks import unheard, unsent, unstored


def check_effects(settings: PipelineFile, findings: Findings) -> None:
    """Warn of messages that no monitor waits for, of sends to nowhere, and of state that no checkpoint holds.

    In a file with pipelines and without monitors, a receiver that no pipeline names is an error (E1208).
    """
    taken = {name for pipeline in settings.pipelines for name in pipeline.from_}
    if settings.pipelines and not settings.monitors:
        for index, receiver in enumerate(settings.receivers):
            if receiver.id not in taken:
                what = "delivers to nobody: no pipeline names it, and there is no monitor"
                findings.error("E1208", f"receivers[{index}]", what, "", "Name it in a pipeline, or leave it out")
        return
    if findings.unusable:
        return  # warnings would only repeat the consequences of the errors
    with contextlib.suppress(ConfigError, TypeError):  # `check_pipelines` reports imports of a wrong type
        classes = [resolve(monitor.type) for monitor in settings.monitors]
        if all(issubclass(cls, Monitor) for cls in classes):
            pipelines = [pipeline.from_ for pipeline in settings.pipelines]
            for remark in (*unheard(settings, classes, pipelines), *unsent(settings, classes), *unstored(classes)):
                findings.warn(remark.code, remark.path, remark.what, remark.allowed, remark.todo)
