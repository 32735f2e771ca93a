"""Starlight for JMS and the connector mean the same partitions by a priority, and take what the other one has sent."""

from collections import Counter, defaultdict

import pytest

from tests.connectors.rabbit import opened
from tests.connectors.test_pulsar_mapping import STARLIGHT
from tests.connectors.test_pulsar_priorities import PRIORITIES, contents, each, partitioned, received, receiver, send
from tests.interop.java_program import JavaProgram
from tests.pulsar_server import NAMESPACE, PulsarServer

pytestmark = pytest.mark.pulsar
TIMES, PARTITIONS = 30, 20


@pytest.mark.parametrize("mapping", ["linear", "non-linear"])
def test_s4_5_java_and_we_mean_the_same_partitions(pulsar: PulsarServer, tmp_path, mapping):
    to_us, to_java = partitioned(pulsar, PARTITIONS), partitioned(pulsar, PARTITIONS)
    connection = pulsar.connection(priority_mapping=mapping)
    send(connection, f"queue:{to_java}", each(TIMES))
    environment = {
        "BROKER_URL": pulsar.url,
        "WEB_URL": f"http://127.0.0.1:{pulsar.web_port}",
        "NAMESPACE": NAMESPACE,
        "CLIENT_ID": "shop",
        "PRIORITY_MAPPING": mapping,
    }
    program = JavaProgram("starlight", tmp_path, environment)
    in_java = program.run(f"rank queue:{to_us} {TIMES}", f"receive queue:{to_java} {10 * TIMES}")
    by_java, by_us = (placed(contents(pulsar, topic, 10 * TIMES)) for topic in (to_us, to_java))
    assert by_us == STARLIGHT[mapping, PARTITIONS]
    assert all(one <= other for one, other in zip(by_java, by_us, strict=True))
    with opened(connection.source(receiver(f"queue:{to_us}"))) as one:
        messages, _ = received(one, 10 * TIMES)
    expected = dict.fromkeys(PRIORITIES, TIMES)
    assert Counter(message.headers.priority for message in messages) == expected
    assert Counter(line["priority"] for line in in_java) == expected


def placed(found):
    """The partitions of each priority."""
    partitions = defaultdict(set)
    for partition, body in found:
        partitions[int(body)].add(partition)
    return [partitions[priority] for priority in PRIORITIES]
