"""The sink of the file connector: writes the body of each message as a JSON line, without properties and headers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from connectors.file.journal import Journal, WriteOptions
from connectors.file.paths import Directory, file_name
from connectors.json_lines import one_line
from correlator.errors import ConnectionLost, SendRejected, quoted
from correlator.events import Outgoing
from correlator.processes import Maker

WRITABLE = (".jsonl",)
_MOST_OPEN_FILES = 64


class FileSink:
    """Appends to the sender's file, if it has one, and to files that single messages name as their destination."""

    def __init__(self, where: str, directory: Directory, name: str | None, options: WriteOptions) -> None:
        self._where = where
        self._options = options
        self._directory = directory
        self._name = name
        self._journals: dict[str, Journal] = {}
        self._maker = Maker()
        self._connected = False

    def connect(self) -> None:
        """Open the sender's file. Raises `UsageError` E2050 in a forked child of a process that has it open."""
        if self._connected:
            self._maker.check(self._where)
        self.close()
        self._maker = Maker()
        if self._name is not None:
            with self._translated():
                self._journal(self._name)
        self._connected = True

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Append the messages that are not refused, with one write and one sync per file. Raises `ConnectionLost`."""
        lines: dict[str, list[tuple[Outgoing, bytes]]] = {}
        results = [self._prepare(out, lines) for out in batch]
        self._maker.check(self._where)
        if not self._connected:
            raise ConnectionLost("E7003", self._where, "not connected")
        with self._translated():
            for name, part in lines.items():
                self._journal(name).append(part)
        return results

    def close(self) -> None:
        """Close all files. Does nothing in a forked child."""
        if self._maker.is_another_process:
            return
        for journal in self._journals.values():
            journal.close()
        self._journals.clear()
        self._connected = False

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Close all files after any error; an `OSError` becomes `ConnectionLost`."""
        try:
            yield
        except OSError as error:
            self.close()
            raise ConnectionLost("E7003", self._where, f"the file cannot be written: {error}") from error
        except BaseException:
            self.close()
            raise

    def _journal(self, name: str) -> Journal:
        journal = self._journals.get(name)
        if journal is not None and not journal.is_in_place:
            self._journals.pop(name).close()
            journal = None
        if journal is None:
            if len(self._journals) >= _MOST_OPEN_FILES:
                self._journals.pop(next(iter(self._journals))).close()
            journal = self._journals[name] = Journal(self._where, self._directory, name, self._options)
        return journal

    def _prepare(self, out: Outgoing, lines: dict[str, list[tuple[Outgoing, bytes]]]) -> SendRejected | None:
        """Add the line to the lines of its file; return the error if the message is refused."""
        name = _writable(out.destination)
        if name is None:
            what = f"{quoted(out.destination)} is not a file to write to"
            return self._refused(out, "E8104", what, "Use queue:NAME.jsonl, below the directory of the connection")
        try:
            line = one_line(out.message.body)
        except ValueError as error:
            return self._refused(out, "E8110", f"the body is not JSON: {error}")
        if out.message.headers is not None and out.message.headers.delivery_delay_ms:
            return self._refused(out, "E8110", "a file cannot delay a message, which 'delivery_delay_ms' asks for")
        lines.setdefault(name, []).append((out, line))
        return None

    def _refused(self, out: Outgoing, code: str, what: str, allowed: str = "") -> SendRejected:
        return SendRejected(code, f"{self._where} message {out.sequence}", what, allowed)


@lru_cache(maxsize=256)
def _writable(destination: str) -> str | None:
    return file_name(destination, WRITABLE)
