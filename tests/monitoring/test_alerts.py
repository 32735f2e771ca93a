"""Alert rules and dashboard of `config`: each metric that they name exists, and promtool of Prometheus tests each rule.

Run as a program, this module writes the table of docs/monitoring.md.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from correlator import Engine
from correlator.runtime.http.metrics import Others, described, exposition
from correlator.settings import ConnectionSettings, EngineSettings
from correlator.testing.memory import MemoryBroker
from tests.runtime.flows import Hears
from tests.runtime.world import BEST_EFFORT, monitor, receiver, sender
from tests.servers import install_packages

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "monitoring.md"
RULES = ROOT / "config" / "monitoring" / "prometheus-alerts.yaml"
DASHBOARD = ROOT / "config" / "monitoring" / "grafana-dashboard.json"
TABLE = re.compile(r"(?<=<!-- alerts -->\n).*?(?=<!-- end -->)", re.DOTALL)
LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
OF_PROMETHEUS = {"job", "instance"}


@pytest.fixture(scope="module")
def promtool():
    """Run promtool of Debian, which is installed if it is absent."""
    if not shutil.which("promtool"):
        install_packages("prometheus")

    def run(*arguments, given=""):
        done = subprocess.run(
            ["promtool", *map(str, arguments)], input=given, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def rules():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def dashboard():
    return json.loads(DASHBOARD.read_text())


def panels():
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries():
    shown = dashboard()
    of_panels = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*of_panels, *(one["expr"] for one in shown["annotations"]["list"])]


def labels_of_metrics():
    """The labels of each series that an engine exports."""
    found = {"up": set()}
    for name, kind, labels, _ in described():
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            found[name + suffix] = set(labels.split(", ")) - {""}
    return found


def named_in(expression):
    return set(re.findall(r"\bcorrelator_\w+|\bup\b", expression))


# --- what they name exists ---


def test_o17_each_metric_and_label_of_an_alert_exists():
    known = labels_of_metrics()
    for rule in rules().values():
        named = named_in(rule["expr"])
        assert named, rule
        assert named <= set(known), rule
        shown = set(LABEL.findall(str(rule["annotations"])))
        assert shown <= OF_PROMETHEUS.union(*(known[name] for name in named)), rule


def test_o17_each_metric_and_label_of_the_dashboard_exists():
    known = labels_of_metrics()
    variables = [one["query"]["query"] for one in dashboard()["templating"]["list"] if one["type"] == "query"]
    for query in (*queries(), *variables):
        assert named_in(query), query
        assert named_in(query) <= set(known), query
    for panel in panels():
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= OF_PROMETHEUS.union(*(known[name] for name in named_in(target["expr"]))), panel["title"]


def test_the_panels_of_the_dashboard_are_explained_and_do_not_overlap():
    every = dashboard()["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken = [
        (x, y)
        for panel in every
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all('job=~"$job", instance=~"$instance"' in target["expr"] for target in panel["targets"])


# --- what Prometheus says ---


class Case(NamedTuple):
    """Series under which an alert comes, series of which none brings it, and the part that it names.

    `seconds` is the time over which the alert compares a counter, if it comes when the counter has grown.
    """

    fires: dict[str, str]
    quiet: list[dict[str, str]]
    part: dict[str, str] = {}
    seconds: int = 0


CASES = {
    "CorrelatorDown": Case({"up": "0x120"}, [{"up": "1x120"}]),
    "CorrelatorNotReady": Case({"correlator_ready": "0x120"}, [{"correlator_ready": "1x120"}]),
    "CorrelatorRestarts": Case(
        {"correlator_start_timestamp_seconds": "1000+60x120"}, [{"correlator_start_timestamp_seconds": "1000x120"}]
    ),
    "CorrelatorStoreFails": Case({"correlator_store_up": "0x120"}, [{"correlator_store_up": "1x120"}]),
    "CorrelatorConnectionDown": Case(
        {'correlator_connection_up{connection="rabbit"}': "0x120"},
        [{'correlator_connection_up{connection="rabbit"}': "1x120"}],
        {"connection": "rabbit"},
    ),
    "CorrelatorSendsWait": Case(
        {
            'correlator_sender_oldest_waiting_seconds{sender="bills"}': "301x120",
            'correlator_sender_paused{sender="bills"}': "0x120",
            'correlator_sender_paused{sender="other"}': "1x120",
        },
        [
            {'correlator_sender_oldest_waiting_seconds{sender="bills"}': "299x120"},
            {
                'correlator_sender_oldest_waiting_seconds{sender="bills"}': "301x120",
                'correlator_sender_paused{sender="bills"}': "1x120",
            },
        ],
        {"sender": "bills"},
    ),
    "CorrelatorEventsWait": Case(
        {'correlator_context_oldest_waiting_seconds{context="main"}': "301x120"},
        [{'correlator_context_oldest_waiting_seconds{context="main"}': "299x120"}],
        {"context": "main"},
    ),
    "CorrelatorReceiverWaits": Case(
        {'correlator_receiver_waiting{receiver="orders"}': "1x120"},
        [
            {'correlator_receiver_waiting{receiver="orders"}': "0x120"},
            {'correlator_receiver_waiting{receiver="orders"}': "0x5 1x9 0x4 1x9 0x4 1x9 0x4 1x9 0x4 1x9 0x4 1x9"},
        ],
        {"receiver": "orders"},
    ),
    "CorrelatorReceiverTakesNothing": Case(
        {
            'correlator_receiver_backlog_messages{receiver="orders"}': "5x120",
            'correlator_receiver_messages_total{receiver="orders"}': "9x120",
            'correlator_receiver_paused{receiver="orders"}': "0x120",
            "correlator_start_timestamp_seconds": "0x120",
        },
        [
            {
                'correlator_receiver_backlog_messages{receiver="orders"}': "5x120",
                'correlator_receiver_messages_total{receiver="orders"}': "9+1x120",
                "correlator_start_timestamp_seconds": "0x120",
            },
            {
                'correlator_receiver_backlog_messages{receiver="orders"}': "0x120",
                'correlator_receiver_messages_total{receiver="orders"}': "9x120",
                "correlator_start_timestamp_seconds": "0x120",
            },
            {
                'correlator_receiver_backlog_messages{receiver="orders"}': "5x120",
                'correlator_receiver_messages_total{receiver="orders"}': "9x120",
                'correlator_receiver_paused{receiver="orders"}': "1x120",
                "correlator_start_timestamp_seconds": "0x120",
            },
        ],
        {"receiver": "orders"},
    ),
    "CorrelatorPaused": Case(
        {'correlator_receiver_paused{receiver="orders"}': "1x120", 'correlator_sender_paused{sender="b"}': "0x120"},
        [{'correlator_sender_paused{sender="bills"}': "0x50 1x70"}],
        {"receiver": "orders"},
    ),
    "CorrelatorSlowCheckpoints": Case(
        {
            'correlator_checkpoint_duration_seconds_bucket{le="5"}': "0x120",
            'correlator_checkpoint_duration_seconds_bucket{le="10"}': "0+1x120",
            'correlator_checkpoint_duration_seconds_bucket{le="+Inf"}': "0+1x120",
        },
        [
            {
                'correlator_checkpoint_duration_seconds_bucket{le="5"}': "0+1x120",
                'correlator_checkpoint_duration_seconds_bucket{le="10"}': "0+1x120",
                'correlator_checkpoint_duration_seconds_bucket{le="+Inf"}': "0+1x120",
            },
        ],
    ),
    "CorrelatorDeadLetters": Case(
        {
            'correlator_sender_dead_letters_total{sender="bills"}': "0+1x120",
            'correlator_receiver_dead_letters_total{receiver="orders"}': "3x120",
        },
        [
            {
                f'correlator_{kind}_dead_letters_total{{{kind}="x"}}': "3x120"
                for kind in ("receiver", "sender", "pipeline")
            }
        ],
        {"sender": "bills"},
        900,
    ),
    "CorrelatorHandlerFails": Case(
        {"correlator_handler_failures_total": "0+1x120"}, [{"correlator_handler_failures_total": "3x120"}], {}, 900
    ),
    "CorrelatorUnhandledMessages": Case(
        {'correlator_receiver_unhandled_total{receiver="orders"}': "0+1x120"},
        [{'correlator_receiver_unhandled_total{receiver="orders"}': "3x120"}],
        {"receiver": "orders"},
        900,
    ),
    "CorrelatorConflictingIds": Case(
        {'correlator_receiver_conflicts_total{receiver="orders"}': "0+1x120"},
        [{'correlator_receiver_conflicts_total{receiver="orders"}': "3x120"}],
        {"receiver": "orders"},
        3600,
    ),
}
WHERE = {"job": "correlator", "instance": "shop:8080"}


def series(given):
    """The series with the labels that Prometheus adds."""
    added = ",".join(f'{name}="{value}"' for name, value in WHERE.items())
    return [
        {"series": f"{name.rstrip('}')},{added}}}" if "{" in name else f"{name}{{{added}}}", "values": values}
        for name, values in given.items()
    ]


def a_test(alert, given, expected):
    at = {"eval_time": "90m", "alertname": alert, "exp_alerts": expected}
    return {"interval": "1m", "input_series": series(given), "alert_rule_test": [at]}


def alert_of(rule, part):
    labels = WHERE | part
    annotations = {
        name: LABEL.sub(lambda found: labels.get(found[1], ""), text) for name, text in rule["annotations"].items()
    }
    return {"exp_labels": labels | rule["labels"], "exp_annotations": annotations}


def test_o17_promtool_tests_each_alert(promtool, tmp_path):
    assert set(CASES) == set(rules())
    tests = []
    for alert, case in CASES.items():
        tests.append(a_test(alert, case.fires, [alert_of(rules()[alert], case.part)]))
        tests.extend(a_test(alert, quiet, []) for quiet in case.quiet)
    promtool("check", "rules", RULES)
    assert_alerts(promtool, tmp_path, tests)


START = "correlator_start_timestamp_seconds"
COUNTED = [
    (alert, metric)
    for alert, case in CASES.items()
    if case.seconds
    for metric in sorted(named_in(rules()[alert]["expr"]) - {START})
]


@pytest.mark.parametrize(("alert", "metric"), COUNTED)
def test_a_counter_that_a_restart_brings_to_the_same_value_has_grown(alert, metric, promtool, tmp_path):
    """Prometheus cannot see that it began at 0 again, nor how far it was when it saw it for the first time."""
    (label,) = labels_of_metrics()[metric] or {""}
    name, part = (f'{metric}{{{label}="x"}}', {label: "x"}) if label else (metric, {})
    evaluated_at, seconds = 90 * 60, CASES[alert].seconds
    minutes = (evaluated_at - seconds) // 60 + 2
    restarted = {name: "3x120", START: f"0x{minutes} {minutes * 60}x{120 - minutes}"}
    first_seen = {name: f"_x{minutes} 3x{120 - minutes}", START: f"_x{minutes} {minutes * 60}x{120 - minutes}"}
    expected = [alert_of(rules()[alert], part)]
    quiet = [
        {name: "3x120", START: "0x120"},
        {name: "3x120", START: f"{evaluated_at - seconds}x120"},
        {name: "0x120", START: restarted[START]},
    ]
    tests = [a_test(alert, fires, expected) for fires in (restarted, first_seen)]
    assert_alerts(promtool, tmp_path, [*tests, *(a_test(alert, given, []) for given in quiet)])


@pytest.mark.parametrize(("alert", "metric"), [one for one in COUNTED if labels_of_metrics()[one[1]]])
def test_a_counter_of_a_part_that_came_later_has_grown(alert, metric, promtool, tmp_path):
    """A part that is added to a running engine may count before Prometheus sees it for the first time."""
    (label,) = labels_of_metrics()[metric]
    name, other = (f'{metric}{{{label}="{part}"}}' for part in ("x", "y"))
    minutes = (90 * 60 - CASES[alert].seconds) // 60
    added = {name: f"_x{minutes + 2} 3x120", other: "3x120", START: "0x120"}
    quiet = [
        {name: f"_x{minutes - 2} 3x120", START: "0x120"},
        {name: f"_x{minutes + 2} 0x120", START: "0x120"},
        {name: f"3x{minutes - 10} _x20 3x120", START: f"0x{minutes - 10} _x20 0x120"},  # Prometheus was down
    ]
    tests = [a_test(alert, added, [alert_of(rules()[alert], {label: "x"})])]
    assert_alerts(promtool, tmp_path, [*tests, *(a_test(alert, given, []) for given in quiet)])


def test_a_receiver_that_took_messages_since_a_start_has_taken_something(promtool, tmp_path):
    """Also if the counter has the value that it had before, or if Prometheus reads it for the first time."""
    alert, counter = "CorrelatorReceiverTakesNothing", 'correlator_receiver_messages_total{receiver="orders"}'
    backlog = {'correlator_receiver_backlog_messages{receiver="orders"}': "5x120"}

    def after(given):
        """An engine that starts in minute 82, eight minutes before Prometheus looks."""
        return {**backlog, counter: given, START: f"0x81 {82 * 60}x38"}

    quiet = [
        after("9x120"),
        after("_x82 9x38"),
        {**backlog, counter: "_x82 9x38", START: "0x120"},  # the receiver was added
    ]
    fires = [
        after("9x81 0x38"),
        after("0x120"),
        {**backlog, counter: "_x70 9x50", START: "0x120"},
        {**backlog, counter: "9x120", START: f"0x69 {70 * 60}x50"},
    ]
    expected = [alert_of(rules()[alert], {"receiver": "orders"})]
    tests = [a_test(alert, given, expected) for given in fires]
    assert_alerts(promtool, tmp_path, [*tests, *(a_test(alert, given, []) for given in quiet)])


def assert_alerts(promtool, tmp_path, tests):
    file = tmp_path / "alerts.test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", file)


def filled(query):
    """The query as Grafana sends it, with a range of one hour."""
    values = {
        "$job": ".*",
        "$instance": ".*",
        "$__rate_interval_ms": "60000",
        "$__rate_interval": "1m",
        "$__range_s": "3600",
        "$__range": "1h",
    }
    for name, value in values.items():
        query = query.replace(name, value)
    return query


def test_o17_promtool_reads_each_query_of_the_dashboard(promtool, tmp_path):
    shown = [filled(query) for query in queries()]
    assert not [query for query in shown if "$" in query]
    recorded = [{"record": f"query:number_{number}", "expr": query} for number, query in enumerate(shown)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    assert f"SUCCESS: {len(recorded)} rules found" in promtool("check", "rules", file)


def counted_in(titles):
    """The queries of these rows of the dashboard that show how counters grow, each with one of the counters."""
    row, found = "", []
    for panel in dashboard()["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        shown = [target["expr"] for target in panel.get("targets", ()) if row in titles]
        found += [(one, name) for one in shown for name in sorted(named_in(one) - {START}) if name.endswith("_total")]
    return found


@pytest.mark.parametrize(("query", "counter"), counted_in({"Is something wrong?", "What goes wrong?"}))
def test_a_panel_shows_what_a_restarted_engine_has_counted(query, counter, promtool, tmp_path):
    """Also if the counter has the value that it had before, or if Prometheus reads it for the first time."""
    (label,) = labels_of_metrics()[counter] or {""}
    name = f'{counter}{{{label}="x"}}' if label else counter
    whole_range = "$__range" in query
    labels = "{}" if whole_range else f'{{job="{WHERE["job"]}",instance="{WHERE["instance"]}",{label}="x"}}'
    per_second = 1 if whole_range else 1 / 60
    restart = f"{90 * 60 - 30}x30"
    cases = [
        ({name: "3x120", START: f"0x89 {restart}"}, 3 * per_second),
        ({name: "_x90 3x30", START: f"_x90 {restart}"}, 3 * per_second),
        ({name: "3x120", START: "0x120"}, 0),
    ]
    if whole_range:
        cases.append(({name: "0x50 5x38 2x30", START: f"0x89 {restart}"}, 7))
    tests = [
        {
            "interval": "1m",
            "input_series": series(given),
            "promql_expr_test": [
                {
                    "expr": f"round({filled(query)}, 0.01)",
                    "eval_time": "90m",
                    "exp_samples": [{"labels": labels, "value": value}],
                }
            ],
        }
        for given, value in cases
    ]
    file = tmp_path / "panel.test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", file)


def test_o3_promtool_accepts_what_an_engine_exports(promtool, tmp_path):
    settings = EngineSettings(
        name="shop",
        store=f"sqlite:///{tmp_path}/shop.db",
        connections={"memory": ConnectionSettings(type="memory")},
        receivers=(receiver("in", BEST_EFFORT),),
        senders=(sender("out", BEST_EFFORT),),
        monitors=(monitor(Hears),),
        status_interval=0.0,
    )
    with Engine(settings, connections={"memory": MemoryBroker().connection("memory")}) as engine:
        assert engine.checkpoint()
        text = exposition(engine.status(), Others())[0].decode()
    assert 'correlator_checkpoint_duration_seconds_bucket{le="+Inf"}' in text
    assert promtool("check", "metrics", given=text) == ""


# --- the page ---


def table():
    rows = []
    for name, rule in rules().items():
        told = rule["annotations"]
        summary = re.sub(r"(\{\{.*?\}\})+", "…", told["summary"])
        rows.append(f"| `{name}` | {rule['labels']['severity']} | {summary} | {told['description']} |\n")
    return "| alert | severity | what it says | what to do |\n|---|---|---|---|\n" + "".join(rows)


def test_the_page_has_all_alerts():
    assert TABLE.search(PAGE.read_text())[0] == table(), f"write it anew: python {Path(__file__).name}"


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))
