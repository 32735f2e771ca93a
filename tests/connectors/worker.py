"""A process that the tests kill: sends or receives in a loop and tells on its standard output what it has done.

    python worker.py send|receive TYPE OPTION=VALUE DESTINATION FIRST

`send` prints the last confirmed sequence; `receive` prints `got BODY…` before, and `acked` after an acknowledgement.
"""

# ruff: noqa: T201 - what it prints is how it speaks to the test

import random
import sys

from connectors.embedded import EmbeddedConnection
from connectors.file import FileConnection
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

LAST = 3000
TYPES = {"embedded": EmbeddedConnection, "file": FileConnection}


def body_of(number):
    return b'{"n":%d}' % number


def send(connection, destination, first):
    sink = connection.sink(SenderSettings(id="s", connection="c", destination=destination))
    sink.connect()
    sizes = random.Random(first)
    while first <= LAST:
        stop = min(first + sizes.randint(1, 40), LAST + 1)
        batch = [Outgoing(n, "life", destination, Message(body_of(n))) for n in range(first, stop)]
        assert not any(sink.send(batch))
        print(stop - 1, flush=True)
        first = stop


def receive(connection, destination, first):
    source = connection.source(ReceiverSettings(id="r", connection="c", destination=destination))
    source.connect()
    sizes = random.Random(first)
    last = 0
    while last < LAST:
        chunk = source.receive(sizes.randint(1, 40), 5.0)
        if chunk.ended:
            break
        print("got", *(message.body.decode() for message in chunk.messages), flush=True)
        source.acknowledge(chunk.tokens)
        print("acked", flush=True)
        if chunk.messages:
            last = int(chunk.messages[-1].body[5:-1])


def main(verb, kind, option, destination, first):
    name, _, value = option.partition("=")
    connection = TYPES[kind]("c", ConnectionSettings(type=kind, options={name: value}))
    {"send": send, "receive": receive}[verb](connection, destination, int(first))


def command():
    main(*sys.argv[1:])


if __name__ == "__main__":
    command()
