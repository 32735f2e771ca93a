"""`correlator rerun`: gives the inputs of a recorded life to the present code, and shows what it would do
differently.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import msgspec
import typer

from correlator.cli.arguments import Share
from correlator.cli.loading import importable, load_engine, store_url
from correlator.cli.output import Row, write_json, write_line, write_table
from correlator.core.differences import FieldChange
from correlator.core.tape import CutTaken, Start
from correlator.errors import RecoveryRefused, UsageError, quoted
from correlator.reliability import SENDING
from correlator.runtime.comparison import (
    OrderedSends,
    SendDifference,
    SentLine,
    StateDifference,
    compare_sends,
    compare_states,
    line_of,
)
from correlator.runtime.replay import Cause, Replayed, opened, settings_in
from correlator.runtime.rerun import rerun
from correlator.settings import EngineSettings
from correlator.storage import inspect
from correlator.storage.states import shown_state

COUNTS = ("sender", "destination", "key", "equal", "missing", "additional", "different")
SENDS = ("what", "sender", "destination", "key", "cause", "fields")
STATE = ("what", "owner", "key", "fields")
MOST_SHOWN = 100
"""How many differences the command prints without --json."""
_decoder = msgspec.json.Decoder(SentLine)


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator rerun` with `app`, the Typer application of all commands."""
    app.command("rerun")(rerun_log)


def rerun_log(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Input log of one life of an engine.", show_default=False)],
    sent: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The sends of that life, written by 'correlator replay LOG --out FILE' with its code.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Copy of the store, taken during that life or after it: the rerun ends with its checkpoint.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Present configuration; modules may lie beside it. Default: the settings in LOG.",
            show_default=False,
        ),
    ] = None,
    share: Share = None,
    json: Annotated[bool, typer.Option("--json", help="Print all differences as JSON.")] = False,
) -> None:
    """Give the inputs of a recorded life to the present code, and compare.

    With --sent it shows which sends are missing, additional or different; with --store, which values of state differ.
    It sends nothing, opens no connection, and only reads the copy of the store. Without --config it looks for modules
    in the working directory.
    """
    if sent is None and store is None:
        raise UsageError("E5600", "correlator rerun", "names nothing for the comparison", "--sent, --store or both")
    recorded = _Recorded.in_log(log)
    before = None if sent is None else _read(sent, recorded)
    copy = None if store is None else _Copy.of(store_url(store), recorded)
    through = None if copy is None else copy.checkpoint
    with importable(config or Path("-")):
        settings = None if config is None else _engine_of(config, share)
        again = rerun(log, settings, through=through)
    equal, sends = _compared(before, again, settings or settings_in(recorded.start), through)
    _tell(again, equal, sends, [] if copy is None else _states(copy, again), json=json)


def _engine_of(config: Path, share: int | None) -> EngineSettings:
    """Read the present settings; raises `UsageError` E2040 for pipelines, because no log has their batches."""
    settings = load_engine(config, share=share).settings
    if settings.pipelines:
        what, todo = "has pipelines, and an input log has the inputs of monitors only", "Leave them out for the rerun"
        raise UsageError("E2040", str(config), what, "", todo)
    return settings


class _Recorded(NamedTuple):
    """The beginning of an input log, and the digests of its checkpoints by number."""

    start: Start
    digests: dict[int, bytes]

    @classmethod
    def in_log(cls, path: Path) -> Self:
        start, _, records = opened(path)
        return cls(start, {record.number: record.digest for record in records if isinstance(record, CutTaken)})

    @property
    def last(self) -> int:
        return max(self.digests, default=self.start.checkpoint)


class _Copy(NamedTuple):
    """The checkpoint and the state in a copy of the store."""

    checkpoint: int
    state: dict[str, dict[bytes, bytes]]

    @classmethod
    def of(cls, url: str, recorded: _Recorded) -> Self:
        """Read the copy; raises `RecoveryRefused` E5601 if it belongs to another life, E5603 if an engine changes
        it.
        """
        instance, found, name = inspect.instance(url), inspect.checkpoints(url), settings_in(recorded.start).name
        if instance is None or not found:
            raise _foreign(url, "holds no checkpoint")
        if instance.name != name:
            raise _foreign(url, f"belongs to engine {quoted(instance.name)}, and the log to engine {quoted(name)}")
        number, digest = found[0].number, found[0].digest
        if recorded.digests.get(number, digest) != digest:
            raise _foreign(url, f"holds a checkpoint {number} that differs from the checkpoint in the log")
        state = inspect.state(url)
        if inspect.checkpoints(url) != found:
            what, todo = "changes while it is read: an engine works with it", "Take a copy: correlator db backup"
            raise RecoveryRefused("E5603", url, what, "", todo)
        return cls(number, state)


def _compared(
    before: Sequence[SentLine] | None, again: Replayed, settings: EngineSettings, through: int | None
) -> tuple[Counter[OrderedSends], list[SendDifference]]:
    """Compare the sends; sends that the life made after the checkpoint `through` do not count."""
    if before is None:
        return Counter(), []
    if through is not None:
        stored = {one.id for one in settings.senders if SENDING[one.reliability].stored}
        before = [line for line in before if line.checkpoint < through + (line.sender in stored)]
    return compare_sends(before, [line_of(output) for output in again.outputs], settings.senders)


def _states(copy: _Copy, again: Replayed) -> list[StateDifference]:
    now = {owner: kept for owner, kept in again.state.items() if kept}
    return compare_states(
        *({(one.owner, one.key): one.problem or one.value for one in shown_state(state)} for state in (copy.state, now))
    )


def _tell(
    again: Replayed,
    equal: Counter[OrderedSends],
    sends: Sequence[SendDifference],
    states: Sequence[StateDifference],
    *,
    json: bool,
) -> None:
    counts = _counts(equal, sends)
    if json:
        write_json(
            {
                "checkpoint": again.number,
                "failure": again.failure,
                "dead_letters": [
                    {"kind": one.kind, "origin": one.origin, "reason": one.reason} for one in again.dead_letters
                ],
                "sends": [dict(zip(COUNTS, row, strict=True)) for row in counts],
                "send_differences": [
                    {"what": one.kind, "before": one.before, "now": one.now, "fields": _changes(one.fields)}
                    for one in sends
                ],
                "state_differences": [{**one._asdict(), "fields": _changes(one.fields)} for one in states],
            }
        )
        return
    write_line(
        f"rerun through checkpoint {again.number}: {sum(equal.values())} sends equal, {len(sends)} not; "
        f"{len(states)} values of state differ; {len(again.dead_letters)} dead letters"
    )
    if again.failure:
        write_line(f"there a handler stops the engine: {again.failure}")
    if sends:
        write_table("Sends", COUNTS, [row for row in counts if sum(map(int, row[4:]))][:MOST_SHOWN])
        write_table("Differences of sends", SENDS, [_send_row(one) for one in sends[:MOST_SHOWN]])
    if states:
        write_table("Differences of state", STATE, [_state_row(one) for one in states[:MOST_SHOWN]])
    if max(len(sends), len(states)) > MOST_SHOWN:
        write_line(f"the first {MOST_SHOWN} are shown; --json prints all")


def _counts(equal: Counter[OrderedSends], sends: Sequence[SendDifference]) -> list[tuple[Any, ...]]:
    kinds = Counter((one.group, one.kind) for one in sends)
    groups = dict.fromkeys([*equal, *(one.group for one in sends)])
    return [(*one, equal[one], *(kinds[one, kind] for kind in COUNTS[4:])) for one in groups]


def _send_row(one: SendDifference) -> Row:
    return (one.kind, *one.group, _cause(one.cause), _fields(one.fields))


def _state_row(one: StateDifference) -> Row:
    return (one.kind, one.owner, one.key, _fields(one.fields))


def _cause(cause: Cause) -> str:
    if cause.receiver:
        return f"message {cause.number} of {cause.receiver}"
    return f"{cause.event or 'timer or life cycle'} in {cause.context}"


def _fields(changes: Sequence[FieldChange]) -> str:
    return ", ".join(f"{one.field}: {one.before} -> {one.after}" for one in changes)


def _changes(changes: Sequence[FieldChange]) -> list[dict[str, str]]:
    return [one._asdict() for one in changes]


def _read(path: Path, recorded: _Recorded) -> list[SentLine]:
    """Read the sends of the life; raises `RecoveryRefused` E5601 if checkpoints of another life have released them."""
    try:
        lines = [_decoder.decode(line) for line in path.read_bytes().splitlines() if line]
    except OSError as error:
        raise UsageError("E2041", str(path), f"cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        what = f"does not have the form of 'correlator replay --out': {error}"
        raise UsageError("E2041", str(path), what) from error
    first, last = recorded.start.checkpoint, recorded.last
    for number, line in enumerate(lines, 1):
        if not first <= line.checkpoint <= last:
            what = f"names checkpoint {line.checkpoint}, the log those from {first} to {last}"
            raise _foreign(f"{path}:{number}", what)
    return lines


def _foreign(where: str, what: str) -> RecoveryRefused:
    return RecoveryRefused(
        "E5601",
        where,
        f"{what}; it does not belong to this input log",
        "A rerun compares with the sends and the state of the recorded life",
        "Name the log of that life",
    )
