"""Deliberate bugs of connectors, and the test that finds each. They test the tests, not the product.

    python -m tests.harness.connector_mutants [NAME ...] [--report FILE.json]

A mutant is another text in the source of one module. Its test runs in a new process, in which this module is imported
with that text: no file changes. The test must fail, and its output must name the reason that the catalogue states, so
a test that fails for something else finds nothing. Each test must pass without a bug. Exit status 1 if a mutant
survives, or if a test fails without a bug.
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import msgspec
import pytest

from correlator.testing.files import write_json
from tests.harness.processes import ROOT, environment

LONGEST_S = 180
"""Seconds after which a test has found nothing."""
_IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"  # the plugin of the project, in the process of a hunt
_OPTIONS = ("-q", "-x", "--tb=short", "-rfE", "-p", "no:randomly", "-p", "no:cacheprovider", "-W", _IMPORTED)
_SQL, _MYSQL, _ERRORS = "test_sql.py", "test_mysql.py", "test_sql_errors.py"
_OUTBOX, _POLLING, _CAPTURE, _LOG = "test_outbox.py", "test_polling.py", "test_capture.py", "test_pgoutput.py"
_WEB, _CALLS, _OBJECTS = "test_http_source.py", "test_http_sink.py", "test_objects.py"


class Edit(NamedTuple):
    """A text of a module, which occurs there once, and the text in its place."""

    module: str
    old: str
    new: str

    def applied(self, source: str) -> str:
        """Return the source with the bug."""
        assert source.count(self.old) == 1, f"{self.module} has {source.count(self.old)} times {self.old!r}"
        return source.replace(self.old, self.new)


class Mutant(NamedTuple):
    """A deliberate bug.

    Attributes:
        sentence: its effect.
        edit: how it is put into the code.
        test: the id of the test that finds it, in `tests/connectors`.
        says: a regular expression for the reason in the output of the test.
    """

    sentence: str
    edit: Edit
    test: str
    says: str


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a mutant.

    Attributes:
        name: its name.
        test: the test that ran.
        found: whether the test failed for the stated reason.
        seconds: duration.
        output: the end of the output, if it was not found.
    """

    name: str
    test: str
    found: bool
    seconds: float
    output: str = ""

    def line(self) -> str:
        """Return the fate as one line."""
        return f"{self.name:44} {f'found by {self.test}' if self.found else 'SURVIVED'}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a hunt."""

    mutants: int
    survived: int
    fail_without: list[str]
    seconds: float
    fates: list[Fate]


CATALOGUE: dict[str, Mutant] = {
    "number_advanced_from_anywhere": Mutant(
        "a sender that another engine has overtaken writes over its number",
        Edit(
            "connectors.sql.sink",
            "(SENDER.c.source == source) & (SENDER.c.sequence == last)",
            "SENDER.c.source == source",
        ),
        f"{_SQL}::test_a_zombie_that_waits_for_the_row_writes_nothing[postgres]",
        r"assert \[\] == \['E7046'\]",
    ),
    "count_of_rows_unread": Mutant(
        "a sender does not look whether it has replaced the number",
        Edit("connectors.sql.sink", ".rowcount != 1:", ".rowcount < 0:"),
        f"{_SQL}::test_a_zombie_writes_nothing[sqlite]",
        r"DID NOT RAISE ConnectionLost",
    ),
    "number_kept_over_a_reconnect": Mutant(
        "after a lost session a sender trusts the number that it remembers",
        Edit("connectors.sql.sink", "        self._last.clear()\n", ""),
        f"{_SQL}::test_a_commit_whose_answer_is_lost[lost_reply-there0-postgres]",
        r"E7046 senders.s: another process has written",
    ),
    "number_in_its_own_transaction": Mutant(
        "the number is committed before the rows",
        Edit(
            "connectors.sql.sink",
            "                self._advance(connection, source, last, new[-1].sequence)\n",
            "                self._advance(connection, source, last, new[-1].sequence)\n                connection.exec_driver_sql('COMMIT')\n                connection.exec_driver_sql('BEGIN')\n",
        ),
        f"{_SQL}::test_a_death_behind_each_call_of_the_driver[sqlite]",
        r"None != 'E8110'",
    ),
    "deadlock_refused": Mutant(
        "the rows of a deadlock become dead letters",
        Edit("connectors.sql.database", '_OF_ONE_ROW = ("22",', '_OF_ONE_ROW = ("40", "22",'),
        f"{_ERRORS}::test_an_error_and_what_it_concerns[postgres_error-40P01-deadlock]",
        r"assert True == \('again' == 'this row'",
    ),
    "check_of_a_view_is_no_refusal": Mutant(
        "in MySQL a row that the check option of a view refuses holds the sender",
        Edit("connectors.sql.database", "1366, 1369, 1411", "1366, 1411"),
        f"{_ERRORS}::test_an_error_and_what_it_concerns[mysql_error-1369/HY000-check option of a view]",
        r"assert False == \('this row' == 'this row'",
    ),
    "constraints_left_deferred": Mutant(
        "a deferred constraint fails at the commit, and names no row",
        Edit("connectors.sql.sink", 'connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")', "pass"),
        f"{_SQL}::test_a_deferred_constraint_names_its_row",
        r"E7003 senders.s: the database failed: duplicate key",
    ),
    "refusals_not_kept": Mutant(
        "a sender forgets which messages the database has refused",
        Edit("connectors.sql.sink", "if source and refusals:", "if False:"),
        f"{_SQL}::test_what_was_refused_stays_refused[sqlite]",
        r"None != 'E8110'",
    ),
    "mode_of_the_server": Mutant(
        "MySQL cuts values that do not fit",
        Edit("connectors.sql.mysql", '_MODE = "TRADITIONAL,NO_', '_MODE = "NO_'),
        f"{_MYSQL}::test_nothing_is_cut_without_an_error",
        r"None != 'E8110'",
    ),
    "engine_without_transactions": Mutant(
        "a sender writes into a table that keeps rows of a transaction that was rolled back",
        Edit("connectors.sql.mysql", "if engine != _ENGINE:", "if engine is None:"),
        f"{_MYSQL}::test_only_tables_that_know_transactions",
        r"DID NOT RAISE ConnectionLost",
    ),
    "other_unique_keys_ignored": Mutant(
        "an upsert in MySQL may change a row with another key",
        Edit("connectors.sql.rows", 'inspector.dialect.name == "mysql" and writing.mode == "upsert"', "False"),
        f"{_MYSQL}::test_another_unique_key_and_upsert[CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(9) UNIQUE)-name]",
        r"DID NOT RAISE ConnectionLost",
    ),
    "outbox_deleted_by_number": Mutant(
        "an acknowledgement deletes a row that has taken the number of one that was read",
        Edit(
            "connectors.sql.outbox_dialects",
            'key == sa.bindparam("k", type_=sa.BigInteger), unique == sa.bindparam("u")',
            'key == sa.bindparam("k", type_=sa.BigInteger)',
        ),
        f"{_OUTBOX}::test_an_acknowledgement_deletes_the_rows_that_were_read[sqlite]",
        r"assert \[\] == \[\(1, 'c'\), \(2, 'd'\)\]",
    ),
    "open_transactions_passed": Mutant(
        "a receiver that polls reads on behind rows of transactions that are still open",
        Edit(
            "connectors.sql.polled_table",
            "            conditions.append(self._order[0] < sa.func.pg_snapshot_xmin(sa.func.pg_current_snapshot()))\n",
            "            pass\n",
        ),
        f"{_POLLING}::test_commits_out_of_order",
        r"Right contains \d+ more items",
    ),
    "equal_values_passed": Mutant(
        "a receiver that polls goes on behind all rows with the value of the last one",
        Edit(
            "connectors.sql.polled_dialects",
            "return sa.tuple_(*order) > sa.tuple_(*map(self._value_of, place))",
            "return order[0] > self._value_of(place[0])",
        ),
        f"{_POLLING}::test_rows_with_equal_values[sqlite]",
        r"Right contains 9900 more items",
    ),
    "place_in_the_log_as_id": Mutant(
        "the changes of a transaction have one unique id",
        Edit("connectors.sql.capture", "{lsn_text(int(lsn))}:{kind}{index}", "{lsn_text(int(lsn))}"),
        f"{_CAPTURE}::test_changes_come_in_the_order_of_commits",
        r"assert 2 == 5",
    ),
    "acknowledged_at_the_change": Mutant(
        "an acknowledged change lets the server forget the others of its transaction",
        Edit(
            "connectors.sql.change_progress",
            "        places = self.rows.acknowledge(tokens)\n        self._advance()\n",
            "        places = self.rows.acknowledge(tokens)\n        self._advance()\n        self.flushed = max([self.flushed, *(int(place[0]) for place in places)])\n",
        ),
        f"{_CAPTURE}::test_the_slot_moves_at_the_end_of_a_transaction_only",
        r"in test_the_slot_moves_at_the_end_of_a_transaction_only\n.*\nE   assert \d+ == \d+",
    ),
    "log_let_go_while_changes_wait": Mutant(
        "the server may forget what it has sent although changes wait",
        Edit("connectors.sql.change_progress", "        if self.is_settled:\n", "        if True:\n"),
        f"{_LOG}::test_the_log_may_go_when_nothing_waits",
        r"assert \(80, 80\) == \(50, 80\)",
    ),
    "told_before_it_is_kept": Mutant(
        "the server is told a position that is not stored yet",
        Edit(
            "connectors.sql.capture",
            "                self._save()\n                self._tell(replication, at_once=True)\n",
            "                replication.tell(self._progress.received, self._progress.flushed, at_once=True)\n                self._save()\n",
        ),
        f"{_CAPTURE}::test_the_server_is_told_after_the_position_is_kept",
        r"E   assert \d+ == \d+",
    ),
    "unchanged_as_null": Mutant(
        "a large value that did not change is null",
        Edit("connectors.sql.pgoutput", "values.append(Kept.UNCHANGED)", "values.append(None)"),
        f"{_CAPTURE}::test_large_values_that_did_not_change_are_not_null",
        r"'name': None",
    ),
    "slot_made_anew": Mutant(
        "a receiver makes a slot that is gone anew, and misses changes",
        Edit(
            "connectors.sql.capture",
            "if kept is not None and kept.has_begun:",
            "if kept is not None and kept.has_begun and server.slot is not None:",
        ),
        f"{_CAPTURE}::test_a_slot_that_is_gone_is_not_made_anew",
        r"DID NOT RAISE ConnectionLost",
    ),
    "answered_before_the_commit": Mutant(
        "a client is told that its message is stored as soon as the receiver takes it",
        Edit(
            "connectors.http.endpoint",
            "            return messages, self._held.hold(owners)",
            "            self._settle(owners, Outcome.STORED)\n            return messages, self._held.hold(owners)",
        ),
        f"{_WEB}::test_h1_the_answer_comes_after_the_acknowledgement",
        r"assert not True",
    ),
    "answered_at_the_first_line": Mutant(
        "a client is told that its lines are stored when the first one is",
        Edit("connectors.http.endpoint", "                if not request.unacknowledged:", "                if True:"),
        f"{_WEB}::test_h6_the_lines_of_a_body_are_messages_of_one_chunk",
        r"assert not True",
    ),
    "stored_at_the_end": Mutant(
        "what is under way when the receiver closes is answered with 202",
        Edit(
            "connectors.http.endpoint",
            "self._settle([*self._held, *self._waiting], Outcome.GIVEN_BACK)",
            "self._settle([*self._held, *self._waiting], Outcome.STORED)",
        ),
        f"{_WEB}::test_h4_what_is_not_stored_is_never_answered_202[close]",
        r"assert \(202, None\) == \(503, '5'\)",
    ),
    "body_of_a_repeat_ignored": Mutant(
        "another body with a known key gets the answer of the first one",
        Edit("connectors.http.application", "elif request.digest != digest:", "elif not digest:"),
        f"{_WEB}::test_h2_a_repeat_waits_for_the_first_request_and_another_body_is_refused",
        r"assert 503 == 422",
    ),
    "body_read_in_vain": Mutant(
        "a body is read although there is no room for it",
        Edit("connectors.http.application", "if endpoint.is_full:", "if not endpoint:"),
        f"{_WEB}::test_h3_a_full_queue_answers_before_the_body_is_read",
        r"startswith of bytes object.*HTTP/1.1 503",
    ),
    "signatures_compared_with_equals": Mutant(
        "how long a wrong signature takes tells how much of it is right",
        Edit("connectors.http.signatures", "hmac.compare_digest(one, ours)", "one == ours"),
        f"{_WEB}::test_h5_the_time_of_a_comparison_tells_nothing",
        r"assert not True",
    ),
    "old_requests_taken": Mutant(
        "a signed request of any time ago is taken again",
        Edit("connectors.http.signatures", "abs(now_s - int(timestamp))", "int(timestamp) - now_s"),
        f"{_WEB}::test_five_minutes_in_both_directions",
        r"At index 4 diff: True != False",
    ),
    "new_key_at_a_repeat": Mutant(
        "a request that is sent again has another key",
        Edit(
            "connectors.http.sink",
            'headers["Idempotency-Key"] = f"{out.sequence}:',
            'headers["Idempotency-Key"] = f"{time.monotonic_ns()}:',
        ),
        f"{_CALLS}::test_h8_whatever_happens_to_the_answer_the_repeat_has_the_same_key[closed]",
        r"\d+:life', b'a'\) != \('1:life', b'a'\)",
    ),
    "lanes_without_key": Mutant(
        "messages with one key use several lanes",
        Edit("connectors.http.sink", "queues[lane_of(out, len(queues))]", "queues[at % len(queues)]"),
        f"{_CALLS}::test_h10_messages_with_a_key_keep_their_order_in_many_lanes",
        r"in test_h10_messages_with_a_key_keep_their_order_in_many_lanes\n.*\nE   assert False",
    ),
    "redirect_confirms": Mutant(
        "a redirect counts as stored",
        Edit("connectors.http.answers", "if 200 <= status < 300:", "if 200 <= status < 400:"),
        f"{_CALLS}::test_h11_a_redirect_is_not_followed",
        r"'NoneType' object has no attribute 'code'",
    ),
    "waits_as_long_as_told": Mutant(
        "a service may hold its sender for years",
        Edit("connectors.http.answers", "return min(float(text), MOST_WAIT_S) if", "return float(text) if"),
        f"{_CALLS}::test_h9_retry_after[7200-3600]",
        r"assert 7200.0 == 3600",
    ),
    "rows_not_counted": Mutant(
        "a sender takes the number of the newest object for the last one that is stored",
        Edit(
            "connectors.objects.series",
            "self.last = _last(first, rows, self._refused)",
            "self.last = _last(first, min(rows, 1), self._refused)",
        ),
        f"{_OBJECTS}::test_each_batch_is_an_object_and_a_repeat_is_left_out[folder-.jsonl]",
        r"00005.jsonl' != '.*00006.jsonl'",
    ),
    "object_of_another_engine": Mutant(
        "an object that another engine has made counts as one's own",
        Edit(
            "connectors.objects.series",
            "if not self._store.create(name, content) and self._content(name) != content:",
            "if not self._store.create(name, content) and not content:",
        ),
        f"{_OBJECTS}::test_two_engines_with_one_source_store_each_message_once",
        r"DID NOT RAISE ConnectionLost",
    ),
    "refusals_not_listed": Mutant(
        "a refused message is not in the list of refusals",
        Edit("connectors.objects.series", "        if refused:\n", "        if refused and not rows:\n"),
        f"{_OBJECTS}::test_a_refused_message_is_refused_again_and_counts[folder]",
        r"None != 'E8110'",
    ),
    "replacing_store_accepted": Mutant(
        "a sender uses a store that replaces objects",
        Edit(
            "connectors.objects.bucket",
            'if self.create(name, b"") and self.create(name, b""):',
            'if not self.create(name, b"") and self.create(name, b""):',
        ),
        f"{_OBJECTS}::test_a_store_that_replaces_objects_is_refused",
        r"DID NOT RAISE ConnectionLost",
    ),
    "newest_object_removed": Mutant(
        "a receiver removes the object that tells a sender what is stored",
        Edit("connectors.objects.source", "name != self._newest.get(folder)", "bool(name)"),
        f"{_OBJECTS}::test_the_newest_object_of_a_sender_stays[folder-delete]",
        r"assert \[\] == \['out/",
    ),
    "removed_before_it_is_noted": Mutant(
        "an object is removed before the position says that it was read",
        Edit("connectors.objects.source", "            if done:\n                self._save()\n", ""),
        f"{_OBJECTS}::test_a_crash_around_the_removal[True]",
        r"E7662 receivers.r: 'in/a.jsonl' has vanished",
    ),
    "another_object_removed": Mutant(
        "a receiver removes an object that has replaced the one that it has read",
        Edit("connectors.objects.folder", "if self.head(found.name) != found:", "if self.head(found.name) is None:"),
        f"{_OBJECTS}::test_an_object_that_is_replaced_before_it_is_removed_is_read[folder-delete]",
        r"'in/a.jsonl' in \[\]",
    ),
    "acknowledgement_not_stored": Mutant(
        "the position of a receiver of objects is not stored",
        Edit(
            "connectors.objects.source",
            "                one.acknowledge(tokens)\n            self._save()\n",
            "                one.acknowledge(tokens)\n",
        ),
        f"{_OBJECTS}::test_a_receiver_goes_on_in_the_middle_of_an_object[folder-.jsonl]",
        r"At index 5 diff: 0 != 5",
    ),
}
"""The mutants by name."""


class _Mutating(SourceFileLoader):
    """Loads the module of an edit from its changed source, without a file of compiled code."""

    def __init__(self, edit: Edit, path: str) -> None:
        super().__init__(edit.module, path)
        self._edit = edit

    def get_code(self, fullname: str) -> CodeType:
        """Compile the changed source."""
        source = self._edit.applied(Path(self.path).read_text(encoding="utf-8"))
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds the module of an edit before the usual finders do."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load the module of the edit; `None` for all others."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._edit.module else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Mutating(self._edit, spec.origin)
        return spec


def run_with(name: str) -> int:
    """Run the test of a mutant in this process, which has the bug from now on; return the exit status of pytest."""
    mutant = CATALOGUE[name]
    assert mutant.edit.module not in sys.modules, f"{mutant.edit.module} is imported already"
    sys.meta_path.insert(0, _Finder(mutant.edit))
    return int(pytest.main([*_OPTIONS, f"tests/connectors/{mutant.test}"]))


def hunt(name: str) -> Fate:
    """Run the test of a mutant in a new process that has the bug."""
    mutant = CATALOGUE[name]
    begin = time.monotonic()
    status, output = _ended([sys.executable, "-m", __spec__.name, "--in-this-process", name])
    found = status == pytest.ExitCode.TESTS_FAILED and "\nFAILED " in output and re.search(mutant.says, output)
    seconds = round(time.monotonic() - begin, 2)
    return Fate(name=name, test=mutant.test, found=bool(found), seconds=seconds, output="" if found else output[-4000:])


def failing_without(tests: Sequence[str]) -> list[str]:
    """Return the lines of the tests that fail without any bug."""
    status, output = _ended([sys.executable, "-m", "pytest", *_OPTIONS, *(f"tests/connectors/{one}" for one in tests)])
    return (
        []
        if status == 0
        else [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))] or [output]
    )


def command(names: Sequence[str], report: Path | None) -> int:
    """Hunt mutants, all without `names`; print a line for each, write the report, and return the exit status."""
    begin = time.monotonic()
    chosen = list(names) or list(CATALOGUE)
    failing = failing_without(sorted({CATALOGUE[name].test for name in chosen}))
    for line in failing:
        _say(f"without a bug: {line}")
    fates = []
    for name in chosen:
        fates.append(hunt(name))
        _say(fates[-1].line())
    survived = sum(not fate.found for fate in fates)
    seconds = round(time.monotonic() - begin, 1)
    _say(f"{len(fates)} mutants, {survived} survived, {seconds:.0f} s")
    if report:
        figures = Report(mutants=len(fates), survived=survived, fail_without=failing, seconds=seconds, fates=fates)
        write_json(report, figures)
    return 1 if survived or failing else 0


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.connector_mutants")
    parser.add_argument("names", nargs="*", metavar="NAME", help="hunt these mutants instead of all")
    parser.add_argument("--report", type=Path, help="write the figures there, as JSON")
    parser.add_argument("--in-this-process", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_this_process:
        return run_with(arguments.in_this_process)
    return command(arguments.names, arguments.report)


def _ended(arguments: Sequence[str]) -> tuple[int | None, str]:
    """Run a process; return its exit status, or `None` if it ran out of time, and its output."""
    try:
        ended = subprocess.run(
            arguments, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=LONGEST_S
        )
    except subprocess.TimeoutExpired as error:
        return None, str(error)
    return ended.returncode, ended.stdout + ended.stderr


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
