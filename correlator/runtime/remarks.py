"""Warns of configured parts that have no effect because the settings do not fit the code of the monitors."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from correlator.core.monitor import Monitor, stored_attributes
from correlator.core.registry import default_senders
from correlator.errors import quoted
from correlator.events import FlowControlMarker, Message
from correlator.reliability import RECEIVING
from correlator.runtime.monitor_code import Application, SendCall, application_of
from correlator.runtime.names import resolve
from correlator.settings import EngineSettings, ReceiverSettings

CHANNEL = "channel:"


class Remark(NamedTuple):
    """A warning of a part without effect: the code, the part, its place in the settings, and further text."""

    code: str
    part: str
    path: str
    what: str
    allowed: str = ""
    todo: str = ""


def unheard(
    settings: EngineSettings, monitors: Sequence[type[Monitor]], pipelines: Iterable[Sequence[str]]
) -> Iterator[Remark]:
    """Find receivers whose messages no monitor listens for. A pipeline takes all messages of the receivers that it
    names.

    Args:
        settings: settings of the engine.
        monitors: the classes of its monitors.
        pipelines: for each pipeline, the receivers that it names.
    """
    taken = {receiver for names in pipelines for receiver in names}
    application = application_of(tuple(monitors))
    for index, receiver in enumerate(settings.receivers):
        if receiver.id not in taken:
            yield from _of_receiver(f"receivers[{index}]", receiver, application)


def unhandled_type(receiver: ReceiverSettings, monitors: Sequence[type[Monitor]]) -> type[Any] | None:
    """Return the type of the receiver's events if no monitor listens for it; `None` if a monitor listens or may listen
    for it.
    """
    event_type: type[Any] = Message if receiver.event is None else _event_type(receiver.event)
    return event_type if _nobody_hears(event_type, application_of(tuple(monitors))) else None


def unsent(settings: EngineSettings, monitors: Sequence[type[Monitor]]) -> Iterator[Remark]:
    """Find sends to senders that do not exist, and to channels that no context receives or no monitor listens to."""
    application = application_of(tuple(monitors))
    senders = [sender.id for sender in (*settings.senders, *default_senders(settings))]
    channels = {monitor.context for monitor in settings.monitors} | application.subscriptions
    for send in application.sends:
        if not send.to.startswith(CHANNEL):
            if send.to not in senders:
                known = f"Senders: {', '.join(senders) or 'none'}"
                what = f"{send.where} sends to {quoted(send.to)}, which is no sender"
                yield Remark("W1533", "monitors", "monitors", what, known, "Configure it, unless the program adds it")
        else:
            yield from _of_channel(send, application, channels)


def unstored(monitors: Sequence[type[Monitor]]) -> Iterator[Remark]:
    """Find attributes of persistent monitors that the code changes but no checkpoint holds, because they have no
    annotation.
    """
    application = application_of(tuple(monitors))
    for cls in (one for one in application.monitors if one.persistent):
        for name in _begins_anew(cls):
            where = (application.changes.get((base, name)) for base in cls.__mro__)
            place = next(filter(None, where), None)
            if place is not None:
                what = f"{place} changes '{name}' of {cls.__name__}, which begins anew at each start"
                allowed = "A checkpoint holds the attributes that have an annotation"
                todo = f"Write `{name}: TYPE = …` in the class; or begin its name with _ to say that it is not kept"
                yield Remark("W1536", "monitors", "monitors", what, allowed, todo)


def _begins_anew(cls: type[Monitor]) -> Iterator[str]:
    """Yield attributes with a value in the class, without an annotation, and without a leading `_`."""
    own = [base for base in cls.__mro__ if base not in Monitor.__mro__]
    names = dict.fromkeys(name for base in own for name in vars(base) if not name.startswith("_"))
    stored = stored_attributes(cls)
    for name in names:
        if name not in stored and not hasattr(inspect.getattr_static(cls, name), "__get__"):
            yield name


def _of_channel(send: SendCall, application: Application, channels: set[str | None]) -> Iterator[Remark]:
    channel = send.to.removeprefix(CHANNEL)
    if channel not in channels and None not in channels and application.told_all:
        what = f"{send.where} sends to channel {quoted(channel)}, which no context receives"
        todo = "Name a context, or let a monitor subscribe"
        yield Remark("W1534", "monitors", "monitors", what, "A context receives its own name", todo)
    elif send.event_type is not None and _nobody_hears(send.event_type, application):
        what = (
            f"{send.where} sends {send.event_type.__name__} to channel {quoted(channel)}, and no monitor listens for it"
        )
        yield Remark("W1535", "monitors", "monitors", what, _heard(application))


def _of_receiver(path: str, receiver: ReceiverSettings, application: Application) -> Iterator[Remark]:
    part = f"receiver '{receiver.id}'"
    event_type = Message if receiver.event is None else _event_type(receiver.event)
    if receiver.unhandled == "warn" and _nobody_hears(event_type, application):
        yield _undelivered(part, path, receiver, event_type, application)
    if RECEIVING[receiver.reliability].acknowledged_by_application and _nobody_resumes(receiver.id, application):
        what = "APP_CONTROLLED stops after its first batch: no monitor calls acknowledge_and_resume() for it"
        yield Remark("W1531", part, f"{path}.reliability", what, "", "Listen for ReceivingSuspended, and call it")
    if receiver.flow_control and _nobody_allows(application):
        what = "delivers nothing: no monitor listens for FlowControlMarker and calls update_flow_control_window()"
        yield Remark("W1532", part, f"{path}.flow_control", what, "", "Let one do so, or leave flow_control out")


def _undelivered(part: str, path: str, receiver: ReceiverSettings, event_type: Any, application: Application) -> Remark:
    if not application.monitors:
        what = "delivers to nobody: there is no monitor, pipeline or bridge"
        return Remark("W1530", part, path, what)
    if receiver.event is None:
        what = "delivers Message, since it has no 'event', and no monitor listens for Message"
        return Remark("W1530", part, path, what, _heard(application), "Set 'event' to what the bodies are")
    what = f"delivers {event_type.__name__}, and no monitor listens for it"
    return Remark("W1530", part, f"{path}.event", what, _heard(application))


def _event_type(event: Any) -> Any:
    return resolve(event) if isinstance(event, str) else event


def _nobody_hears(event_type: Any, application: Application) -> bool:
    return application.told_all and event_type not in application.hears


def _nobody_resumes(receiver: str, application: Application) -> bool:
    return application.told_all and not application.acknowledges & {receiver, None}


def _nobody_allows(application: Application) -> bool:
    allows = FlowControlMarker in application.hears and application.updates_windows
    return application.told_all and not allows


def _heard(application: Application) -> str:
    return f"Monitors listen for: {', '.join(sorted(cls.__name__ for cls in application.hears)) or 'nothing'}"
