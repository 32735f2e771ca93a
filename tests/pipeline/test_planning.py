"""What a person sees of a pipeline in Spark: names of jobs; and how long Spark planned."""

import json
import threading

import pytest
from py4j.java_gateway import GatewayClient

from correlator.pipeline import small
from correlator.pipeline.planning import Planning
from correlator.pipeline.spec import AggregateStep, DecodeStep, RouteStep, WhereStep
from correlator.runtime import phases
from correlator.testing.clock import ManualClock
from tests.pipeline.conftest import as_large

DECODED = DecodeStep(format="json", schema="city STRING, price INT, at TIMESTAMP")
SUMS = AggregateStep(key="city", event_time="at", window=3600.0, values={"total": "sum(price)"})


def jobs_of(session, pipeline: str) -> list[str]:
    """The descriptions of the jobs of a pipeline, in order, each once."""
    context = session._session.sparkContext
    store = context._jsc.sc().statusStore()
    ids = sorted(context.statusTracker().getJobIdsForGroup(f"pipeline {pipeline}"))
    return list(dict.fromkeys(store.job(one).description().get() for one in ids))


def order(price: int) -> str:
    return f'{{"city": "Oslo", "price": {price}, "at": "2026-03-01T12:00:00Z"}}'


STEPS = (DECODED, WhereStep(condition="price > 0"), SUMS, RouteStep(to="out"))


@pytest.fixture
def sales(engine):
    return engine(*STEPS)


def test_a_job_names_its_pipeline_its_steps_and_its_batch(engine, session):
    sales = engine(*STEPS, name="jobs")  # no other pipeline of the session has the name
    sales.run(order(1), order(2), large=False)
    first, second = jobs_of(session, "jobs")
    assert first == "pipeline jobs, steps 1 decode, 2 where, 3 aggregate: 2 messages, in 1 to in 2"
    assert second == "pipeline jobs, steps 4 route: 2 messages, in 1 to in 2"
    with as_large(sales.processor):
        sales.run(order(3), large=False)
    new = jobs_of(session, "jobs")[2:]
    assert new == ["pipeline jobs, steps 1 decode, 2 where, 3 aggregate, 4 route: 1 message, in 3 to in 3"]
    sales.conclude()
    assert jobs_of(session, "jobs")[-1] == "pipeline jobs, steps 4 route: end of all input, 1 key"


def test_the_compiler_tells_which_step_it_compiles(engine):
    heard: list[str] = []
    phases.listen(heard.append)
    named = AggregateStep(name="by-city", key="city", event_time="at", window=3600.0, values={"n": "count(*)"})
    try:
        engine(DECODED, named, RouteStep(to="out"), name="sales")
    finally:
        phases.ignore(heard.append)
    assert heard == [
        "pipeline sales: compiling step 1 of 3 (decode)",
        "pipeline sales: compiling step 2 of 3 (aggregate by-city)",
        "pipeline sales: compiling step 3 of 3 (route)",
    ]


def test_spark_plans_small_batches_once_and_each_large_batch(sales):
    assert sales.processor.planned_s == 0
    sales.run(order(1), large=False)
    once = sales.processor.planned_s
    assert once > 0
    sales.run(order(2), large=False)
    assert sales.processor.planned_s == once
    with as_large(sales.processor):
        sales.run(order(3), large=False)
    assert sales.processor.planned_s > once


def test_the_first_small_batch_after_a_larger_one_needs_no_plan_of_its_own(sales, monkeypatch):
    monkeypatch.setattr(small, "MOST_ROWS", 2)
    sales.run(*(order(price) for price in (1, 2, 3)), large=False)
    planned = sales.processor.planned_s
    parts = [part for _, part in sales.processor._opened.small._sections]
    sales.run(order(10), large=False)
    assert sales.processor.planned_s == planned
    sales.run(order(100), large=False)
    assert sales.processor.planned_s > planned, "many small batches are worth a plan for one core"
    assert [part for _, part in sales.processor._opened.small._sections] == [*parts, 1]
    sales.conclude()
    assert [json.loads(body)["total"] for body in sales.bodies()] == [116]


def test_the_time_of_a_plan_is_that_of_its_clock():
    clock = ManualClock()
    planning = Planning(clock)
    with pytest.raises(ValueError, match="no plan"), planning.measured():
        clock.advance(2.5)
        raise ValueError("no plan")
    assert planning.spent_s == 2.5


def test_a_small_batch_moves_no_rows_and_asks_java_little(engine, session, monkeypatch):
    """SP10: no plan has an exchange, each job has one task, and a batch takes at most 100 calls of Java."""
    sales = engine(*STEPS, name="calls")
    bodies = [order(price) for price in range(1, 1001)]
    sales.run(*bodies, large=False)
    calls, here = [], threading.get_ident()  # a thread of Py4J releases what earlier tests have left, at any time
    sent = GatewayClient.send_command

    def send(*given):
        if threading.get_ident() == here:
            calls.append(given[1])
        return sent(*given)

    monkeypatch.setattr(GatewayClient, "send_command", send)
    sales.run(*bodies, large=False)
    monkeypatch.undo()
    assert 0 < len(calls) <= 100
    sections = sales.processor._opened.small._sections.values()
    plans = [section.plan._jdf.queryExecution().executedPlan().toString() for section in sections]
    assert len(plans) == 2
    assert not any("Exchange" in plan for plan in plans)
    context = session._session.sparkContext
    jobs = [
        context.statusTracker().getJobInfo(one) for one in context.statusTracker().getJobIdsForGroup("pipeline calls")
    ]
    stages = [context.statusTracker().getStageInfo(stage) for job in jobs[:2] for stage in job.stageIds]
    assert [stage.numTasks for stage in stages] == [1, 1]
