"""A process that the tests kill or stop: a sink that sends a batch of so many messages, again and again the same.

    python pulsar_worker.py OPTIONS DESTINATION COUNT

It prints a line when the batch is confirmed for the first time.
"""

import json
import sys

from connectors.pulsar import PulsarConnection
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, SenderSettings


def main(options, destination, count):
    connection = PulsarConnection("pulsar", ConnectionSettings(type="pulsar", options=json.loads(options)))
    sink = connection.sink(SenderSettings(id="s", connection="pulsar", destination=destination))
    sink.connect()
    batch = [Outgoing(number, "life", destination, Message(b"%d" % number)) for number in range(1, int(count) + 1)]
    while True:
        assert not any(sink.send(batch))
        sys.stdout.write("confirmed\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
