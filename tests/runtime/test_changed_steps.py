"""Steps with state that change between two lives of an engine, with a processor that needs no Spark."""

import pytest

from correlator.core import faults
from correlator.core.batch_context import Effects
from correlator.core.commit import StateEntry
from correlator.core.fingerprints import digest
from correlator.core.steps import ConfiguredStep, stored_steps
from correlator.errors import RecoveryRefused
from correlator.events import Message
from correlator.runtime.replay import replay
from correlator.storage import inspect
from tests.runtime.test_poison import Dies, Pipeline
from tests.runtime.world import contents, receiver, sender

SUMS = {"kind": "aggregate", "value 1 function": "sum"}
MOST = {"kind": "aggregate", "value 1 function": "max"}


class Folds(Pipeline):
    """Folds numbers, and sends what comes out."""

    def __init__(self, facts=SUMS, name="aggregate#0", was="", decision="") -> None:
        super().__init__("none")
        self._owner = f"step:copies/{name}"
        self._fold = sum if facts == SUMS else max
        self.steps = (
            ConfiguredStep(f"copies/{name}", facts, was and f"copies/{was}", decision, lambda key, data: int(data)),
        )

    def process(self, batch, state, engine_time):
        folded, sends = state.get(self._owner, b"all"), []
        for one in batch:
            numbers = [int(one.message.body), *([int(folded)] if folded is not None else [])]
            folded = b"%d" % self._fold(numbers)
            sends.append(("out", Message(folded)))
        return Effects(sends, [StateEntry(self._owner, b"all", folded)])


@pytest.fixture
def live(world):
    """One life with this processor: all that has been sent so far."""

    def live(processor, *bodies, **settings):
        before = len(world.sent())
        with world.engine(receiver(), sender(), processors=[processor] if processor else [], **settings) as engine:
            world.publish(*bodies)
            world.wait(lambda: len(world.sent()) == before + len(bodies) and engine.checkpoint())
        return world.sent()[before:]

    return live


def refused(world, live, processor, code, **settings):
    before = contents(world.store)
    with pytest.raises(RecoveryRefused, match=code):
        live(processor, **settings)
    assert contents(world.store) == before


def keys(world):
    return {name: dict(one.values) for name, one in stored_steps(inspect.state(world.store)).items()}


def test_state_that_does_not_fit_is_refused_and_then_discarded(world, live):
    assert live(Folds(), "1", "2") == ["1", "3"]
    refused(world, live, Folds(MOST), "E4330")
    assert live(Folds(), "4") == ["7"]
    most = Folds(MOST, decision=f"discard {digest(SUMS)}")
    assert live(most, "5", "6", "3") == ["5", "6", "6"]
    assert live(most, "8") == ["8"]
    refused(world, live, Folds(), "E4330")


@pytest.mark.parametrize(
    "decided", [{"decision": f"discard {digest(SUMS)}", "facts": MOST}, {"name": "n", "was": "aggregate#0"}]
)
def test_what_a_start_decides_is_undone_by_a_crash_before_the_first_checkpoint(world, live, decided):
    live(Folds(), "1", "2")
    before = keys(world)
    world.fail_at("ck.snapshot", Dies())
    engine = world.engine(receiver(), sender(), processors=[Folds(**decided)])
    engine.start()
    world.wait(lambda: engine.failure is not None)
    engine.stop(drain=False)
    faults.install(None)
    assert keys(world) == before
    assert live(Folds(), "4") == ["7"]
    assert live(Folds(**decided), "9") == ["9" if "decision" in decided else "16"]


def test_a_renamed_step_and_a_removed_pipeline(world, live):
    live(Folds(), "1")
    refused(world, live, Folds(name="sums"), "E4331")
    assert live(Folds(name="sums", was="aggregate#0"), "2") == ["3"]
    assert keys(world) == {"copies/sums": {b"all": b"3"}}
    refused(world, live, None, "E4331")
    live(None, discard_state=(f"copies/sums {digest(SUMS)}",))
    assert keys(world) == {}


def test_settings_that_do_nothing_are_told_at_the_start(live, logs):
    live(Folds(), "1")
    live(Folds(decision="keep 12345678", was="sums"), discard_state=("copies/gone 12345678",))
    step, discard = (line for line in logs if line["event"].startswith("W4332"))
    assert "'state: keep 12345678' belongs to an earlier change and does nothing" in step["note"]
    assert "'was' does nothing, since the step has state of its own" in step["note"]
    assert discard["part"] == "discard_state copies/gone 12345678"
    assert discard["note"] == "names no state that is left in the store, and does nothing"


def test_the_input_log_of_a_life_that_discarded_state_is_repeated(world, live, tmp_path):
    live(Folds(), "1")
    live(None, discard_state=(f"copies/aggregate#0 {digest(SUMS)}",), input_log=str(tmp_path / "input.log"))
    again, (checkpoint,) = replay(tmp_path / "input.log.1"), inspect.checkpoints(world.store)
    assert (again.number, again.digest) == (checkpoint.number, checkpoint.digest)


def test_a_decision_is_written_though_nothing_else_happens(world, live):
    live(Folds(), "1")
    live(Folds(MOST, decision=f"discard {digest(SUMS)}"))
    assert keys(world) == {"copies/aggregate#0": {}}
