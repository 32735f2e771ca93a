"""The protocol of commands and engines on the control socket: a line of JSON for a request, and one for its answer."""

from typing import Annotated, Any, Literal

import msgspec

from correlator.errors import CorrelatorError

STORE_HEADER = "Correlator-Store"
"""The header with which the HTTP server tells the store of its engine: the digest of the store's address."""
LONGEST_REQUEST = 8192
LONGEST_ANSWER = 1 << 26
LONGEST_WAIT_S = 86_400.0

MOST_NUMBERS = 300
"""The largest number of dead letters in one request, so that its line is not too long."""

Number = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
Kind = Literal["receiver", "sender"]
Wait = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_S)]


class _Request(msgspec.Struct, tag_field="command", forbid_unknown_fields=True):
    """A request. `command` in its JSON is the tag of its class."""


class Ask(_Request, tag="status"):
    """Asks for the status of the engine."""


class AskSettings(_Request, tag="settings"):
    """Asks what the engine runs with."""


class Pause(_Request, tag="pause"):
    """Pauses a receiver or sender; without effect while it is paused."""

    kind: Kind
    part: Id


class Resume(_Request, tag="resume"):
    """Ends the pause of a receiver or sender; without effect if there is none."""

    kind: Kind
    part: Id


class Drain(_Request, tag="drain"):
    """Waits until a receiver or sender has nothing left to do."""

    kind: Kind
    part: Id
    timeout: Wait


class TakeCheckpoint(_Request, tag="checkpoint"):
    """Orders a checkpoint, and waits for it."""

    timeout: Wait


class SetLevel(_Request, tag="loglevel"):
    """Sets the level of the log, or of a logger of Python's `logging`."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"]
    logger: Id | None = None


class Discard(_Request, tag="discard"):
    """Deletes dead letters by number."""

    numbers: Annotated[list[Number], msgspec.Meta(min_length=1, max_length=MOST_NUMBERS)]


class Replay(_Request, tag="replay"):
    """Brings the messages of dead letters back, by number."""

    numbers: Annotated[list[Number], msgspec.Meta(min_length=1, max_length=MOST_NUMBERS)]
    timeout: Wait


class Follow(_Request, tag="events"):
    """Asks for the entries of the timeline after a place; waits for one if there is none."""

    after: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    wait: Wait = 0.0


Request = Ask | AskSettings | Pause | Resume | Drain | TakeCheckpoint | SetLevel | Discard | Replay | Follow


class Problem(msgspec.Struct, frozen=True):
    """Why a request was not carried out: the parts of a `CorrelatorError`, and the exit status of the command."""

    code: str
    where: str
    what: str
    allowed: str
    todo: str
    exit_status: int

    @classmethod
    def of(cls, error: CorrelatorError) -> "Problem":
        """Make the problem of an error that a command would print and end with."""
        return cls(error.code, error.where, error.what, error.allowed, error.todo, error.exit_status)


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request: its result, or why there is none."""

    result: dict[str, Any] | None = None
    problem: Problem | None = None


_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
decode_request = _requests.decode
decode_answer = msgspec.json.Decoder(Answer).decode


def line(value: Request | Answer) -> bytes:
    """Return a value as a line."""
    return msgspec.json.encode(value) + b"\n"
