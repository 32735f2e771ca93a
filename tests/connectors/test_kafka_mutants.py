"""The tests of the connector for Kafka find every deliberate bug of its catalogue. Without the bugs they pass by themselves."""

import pytest

from correlator.errors import ConnectionLost
from tests.connectors.kafka_mutants import CATALOGUE, EQUIVALENT
from tests.harness.mutants.catalogue import patched
from tests.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_mutant_is_found(kafka: KafkaServer, name: str) -> None:
    mutant = CATALOGUE[name]
    with (
        patched(mutant.patch),
        pytest.MonkeyPatch.context() as changes,
        pytest.raises((AssertionError, ConnectionLost)) as found,
    ):
        mutant.check(kafka, changes)
    error = found.value
    how = error.code if isinstance(error, ConnectionLost) else type(error).__name__
    assert how == mutant.found, error


def test_what_cannot_be_found_has_a_proof() -> None:
    assert all(len(proof) > 100 for proof in EQUIVALENT.values())
    assert not EQUIVALENT.keys() & CATALOGUE.keys()
