"""Rounds of kills, each with a fresh table, topic and store."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from connectors.kafka.log import LOG
from correlator.storage.inspect import dead_letters
from tests.connectors.campaign import command
from tests.connectors.campaign.clients import Clients
from tests.connectors.campaign.life import PATIENCE_S, Life
from tests.connectors.webhook_campaign import shop
from tests.connectors.webhook_campaign.shop import (
    BEFORE_THE_ANSWER,
    BEHIND_THE_TABLE,
    BEHIND_THE_TOPIC,
    PLACES,
    Death,
)
from tests.forking import forking
from tests.kafka_server import KafkaServer
from tests.servers import PostgresServer, free_port
from tests.waiting import wait_until

FORKING = forking("connectors.http", shop.__name__)
ENGINE, POSTGRES, KAFKA = "engine", "postgres", "kafka"
KEYS, SENDERS = "keys", "senders"
"""The controls: each request has a key of its own; the senders do not know what they have sent."""
CONTROLS: Mapping[str, Sequence[str]] = {KEYS: (BEFORE_THE_ANSWER,), SENDERS: (BEHIND_THE_TABLE, BEHIND_THE_TOPIC)}
"""Where the engine dies in them: where the next life does something again."""
KILLS_OF_A_ROUND, SERVER_KILLS_OF_A_ROUND, KILLS_OF_A_CONTROL = 24, 10, 6
AT_A_PLACE, TOGETHER = 0.5, 0.25
_KEYS: Mapping[str, Callable[[int, int], str]] = {KEYS: lambda number, tries: f"{number} {tries}"}
LAST_CALL = 6
SLOWEST_COMMIT_S = 0.01
LONGEST_WAIT_S = 0.5
_MOST_AT_ONCE = 1000
PAUSE_S = 0.05
LOOK_S = 0.1
MOST_STARTS = 5
"""A server that was killed may end once more while it starts, if the machine is busy."""
TOPIC, PARTITIONS, CUSTOMERS = "orders", 3, 7
TABLE = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, cents BIGINT NOT NULL CHECK (cents > 0))",
    "CREATE TABLE written (at BIGSERIAL PRIMARY KEY, id BIGINT, customer TEXT)",
    """CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN INSERT INTO written (id, customer) VALUES (NEW.id, NEW.customer); RETURN NULL; END $$""",
    "CREATE TRIGGER noting AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION note()",
)


@dataclass
class Figures:
    """What rounds of one kind have found.

    Attributes:
        kills: engines that were killed, by place; "any" for those that were killed from outside.
        server_kills: how often each server was killed.
        together: kills of the engine while a server was down.
        waiting: kills of a server while clients waited for an answer.
        orders: orders that clients were told to be stored.
        repeats: requests of clients beyond the first of an order.
        twice_in_table: writes of the table beyond the first of an order.
        twice_in_topic: messages of the topic beyond the first of an order.
        seconds: duration.
        violations: what is wrong.
    """

    kills: Counter[str] = field(default_factory=Counter)
    server_kills: Counter[str] = field(default_factory=Counter)
    together: int = 0
    waiting: int = 0
    orders: int = 0
    repeats: int = 0
    twice_in_table: int = 0
    twice_in_topic: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


@dataclass
class Result(command.Result):
    """The result of a campaign."""

    seed: int
    figures: Figures = field(default_factory=Figures)
    controls: dict[str, Figures] = field(default_factory=lambda: {name: Figures() for name in CONTROLS})

    @property
    def violations(self) -> Sequence[str]:
        """The violations that the campaign found."""
        return [*self.figures.violations, *(one for control in self.controls.values() for one in control.violations)]

    @property
    def blind(self) -> Sequence[str]:
        """The reasons why the campaign proves nothing although it found no violation."""
        found = []
        for name, one in self.controls.items():
            doubles = {"table": one.twice_in_table, "topic": one.twice_in_topic}
            found += [
                f"control {name}: nothing is twice in the {where}" for where, times in doubles.items() if not times
            ]
        return found

    def lines(self) -> Sequence[str]:
        """The result as lines of text."""
        one = self.figures
        places = ", ".join(f"{number} {place}" for place, number in sorted(one.kills.items()))
        servers = ", ".join(f"{number} of {server}" for server, number in sorted(one.server_kills.items()))
        twice = "{0.twice_in_table} writes of the table and {0.twice_in_topic} messages of the topic beyond the first"
        return [
            f"seed {self.seed}: {one.kills.total()} kills of the engine ({places}), {one.together} while a server was down",
            f"kills of servers: {servers}; {one.waiting} while clients waited",
            f"{one.orders} orders, {one.repeats} requests repeated by clients",
            f"{twice.format(one)}; {len(one.violations)} violations, {one.seconds:.0f} s",
            *(
                f"control {name}: {twice.format(control)} after {control.kills.total()} kills"
                for name, control in self.controls.items()
            ),
            *self.violations,
            *self.blind,
        ]


class Tail:
    """Counts the messages of the topic as they come."""

    def __init__(self, kafka: KafkaServer) -> None:
        client = {
            "bootstrap.servers": kafka.servers,
            "group.id": "tail",
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
        self._consumer = Consumer(client, logger=LOG)
        self._consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        self._count = 0

    def count(self) -> int:
        """How many messages have come by now."""
        is_full = True
        while is_full:
            found = self._consumer.consume(_MOST_AT_ONCE, LOOK_S)
            self._count += sum(one.error() is None for one in found)
            is_full = len(found) == _MOST_AT_ONCE
        return self._count

    def close(self) -> None:
        """End it."""
        self._consumer.close()


class Site:
    """The place of a round: a directory for the store, a database and a topic."""

    def __init__(self, directory: Path, postgres: PostgresServer, kafka: KafkaServer) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        self.postgres = postgres
        self.kafka = kafka
        self.port = free_port()
        self.store = f"sqlite:///{directory}/webhook.db"
        self._database = postgres.fresh_database()
        with psycopg.connect(self._database) as connection:
            for statement in TABLE:
                connection.execute(statement)
        kafka.make_topic(TOPIC, PARTITIONS)
        self._tail = Tail(kafka)

    def life(self, death: Death | None = None, *, forgets: bool = False) -> Life:
        """Begin a life of the engine."""
        environment = {
            "CORRELATOR_STORE": self.store,
            "SHOP_DATABASE": self._database,
            "KAFKA": self.kafka.servers,
            "PORT": str(self.port),
        }
        return Life(FORKING, shop.live, self.directory, environment, death, forgets=forgets)

    def rows(self) -> list[tuple[int, str, int]]:
        """The rows of the table."""
        return self._asked("SELECT id, customer, cents FROM orders")

    def written(self) -> list[tuple[int, str]]:
        """The number and the customer of each row that was written, in the order of the writes."""
        return self._asked("SELECT id, customer FROM written ORDER BY at")

    def messages(self) -> list[tuple[str, tuple[int, str, int]]]:
        """The key and the order of each message of the topic."""
        records = self.kafka.records(TOPIC, settled=False)
        return [((one.key() or b"").decode(), values_of(one.value() or b"")) for one in records]

    def in_both(self) -> set[tuple[int, str, int]]:
        """The orders that are in the table and in the topic."""
        return {*self.rows()} & {order for _, order in self.messages()}

    def counts(self) -> tuple[int, int]:
        """How many writes of the table there are, and how many messages of the topic."""
        ((written,),) = self._asked("SELECT count(*) FROM written")
        return written, self._tail.count()

    def close(self) -> None:
        """Remove the topic, whose name is that of the next round, too."""
        self._tail.close()
        self.kafka.delete_topic(TOPIC)

    def _asked(self, query: str) -> list[Any]:
        with psycopg.connect(self._database, autocommit=True) as connection:
            return connection.execute(query).fetchall()


def body_of(number: int) -> bytes:
    """The body of an order."""
    return msgspec.json.encode({"id": number, "customer": f"c{number % CUSTOMERS}", "cents": 100 * number})


def values_of(body: bytes) -> tuple[int, str, int]:
    """The columns of an order."""
    order = msgspec.json.decode(body)
    return order["id"], order["customer"], order["cents"]


def campaign(
    directory: Path,
    postgres: PostgresServer,
    kafka: KafkaServer,
    *,
    kills: int,
    server_kills: Mapping[str, int],
    seed: int,
    say: Callable[[str], object] = lambda _: None,
) -> Result:
    """Run the controls, then rounds with so many kills together. A violation ends the campaign."""
    result = Result(seed)
    for name in CONTROLS:
        one_round(
            Site(directory / f"control-{name}", postgres, kafka),
            result.controls[name],
            random.Random(f"{seed} {name}"),
            [ENGINE] * KILLS_OF_A_CONTROL,
            control=name,
        )
    of_servers = [name for name, number in server_kills.items() for _ in range(number)]
    random.Random(seed).shuffle(of_servers)
    for number in count(1):
        some, of_servers = of_servers[:SERVER_KILLS_OF_A_ROUND], of_servers[SERVER_KILLS_OF_A_ROUND:]
        left = kills - result.figures.kills.total()
        some = some or [ENGINE] * min(left, KILLS_OF_A_ROUND)
        if not some or result.violations:
            break
        one_round(
            Site(directory / f"round{number}", postgres, kafka), result.figures, random.Random(f"{seed} {number}"), some
        )
        say(f"round {number}: {result.figures.kills.total()} + {result.figures.server_kills.total()} kills")
    return result


def one_round(site: Site, figures: Figures, rng: random.Random, victims: Sequence[str], *, control: str = "") -> None:
    """One round: all its kills, a life without a kill, and the comparison. Without a violation nothing is left of it.

    Args:
        site: where the round takes place.
        figures: get the figures.
        rng: decides.
        victims: what is killed, in this order: the engine or a server.
        control: the protection that is switched off, or none.
    """
    begin = time.monotonic()
    clients = Clients(site.port, body_of, _KEYS.get(control, lambda number, _: str(number)), pause_s=PAUSE_S)
    life: Life | None = None
    for victim in victims:
        if victim == ENGINE:
            _kill_engine(site, life, figures, rng, control)
            life = None
            continue
        life = life or site.life()
        if _kill_server(site, victim, clients, life, figures, rng):
            life = None
    life = life or site.life(forgets=control == SENDERS)
    clients.end()
    stored = {values_of(body) for body in clients.stored}
    wait_until(lambda: min(site.counts()) >= len(stored) and stored <= site.in_both(), PATIENCE_S, LOOK_S)
    status = life.stop()
    found = [*clients.failures, *_compare(site, stored, figures, is_control=bool(control))]
    if status:
        found.append(f"the last life ended with status {status}")
    figures.orders += len(clients.stored)
    figures.repeats += clients.repeats
    figures.violations += [f"{site.directory.name}: {one}" for one in found]
    figures.seconds += time.monotonic() - begin
    site.close()
    if not found:
        shutil.rmtree(site.directory)


def _kill_engine(site: Site, life: Life | None, figures: Figures, rng: random.Random, control: str) -> None:
    """Kill the engine; if there is none, begin one, and let it live until it kills itself, or is killed."""
    death = None
    if life is None:
        places = CONTROLS.get(control, PLACES)
        if control or rng.random() < AT_A_PLACE:
            place = places[figures.kills.total() % len(places)]
            death = Death(place, rng.randint(1, LAST_CALL), rng.random() * SLOWEST_COMMIT_S)
        life = site.life(death, forgets=control == SENDERS)
    life.begin()
    life.wait(PATIENCE_S if death else LONGEST_WAIT_S * rng.random())
    at_its_place = life.kill()
    figures.kills[death.place if death and at_its_place else "any"] += 1


def _kill_server(site: Site, server: str, clients: Clients, life: Life, figures: Figures, rng: random.Random) -> bool:
    """Kill a server when orders have come into the table and the topic, and start it; returns whether the engine was
    killed meanwhile.
    """
    before = site.counts()
    wait_until(lambda: all(now > then for now, then in zip(site.counts(), before, strict=True)), PATIENCE_S, LOOK_S)
    time.sleep(rng.random() * LONGEST_WAIT_S)
    victim: PostgresServer | KafkaServer = site.postgres if server == POSTGRES else site.kafka
    figures.waiting += clients.is_one_waiting
    victim.kill()
    figures.server_kills[server] += 1
    dies_too = rng.random() < TOGETHER
    if dies_too:
        time.sleep(rng.random() * LONGEST_WAIT_S)
        life.kill()
        figures.kills["any"] += 1
        figures.together += 1
    _start(victim)
    return dies_too


def _start(server: PostgresServer | KafkaServer) -> None:
    for _ in range(MOST_STARTS - 1):
        try:
            server.start()
        except RuntimeError:
            server.kill()
        else:
            return
    server.start()


def _compare(site: Site, stored: set[tuple[int, str, int]], figures: Figures, *, is_control: bool) -> list[str]:
    """Compare the table and the topic with the orders that clients were told to be stored, and with each other."""
    written, messages = site.written(), site.messages()
    found = [f"dead letter: {one.letter.reason}" for one in dead_letters(site.store)]
    for where, there in (("table", {*site.rows()}), ("topic", {order for _, order in messages})):
        if there != stored:
            found.append(
                f"the {where} lacks {sorted(stored - there)[:20]}, and has {sorted(there - stored)[:20]} besides"
            )
    if wrong := [order for key, order in messages if key != order[1]]:
        found.append(f"messages with another key than their customer: {wrong[:20]}")
    writes, sends = Counter(number for number, _ in written), Counter(order[0] for _, order in messages)
    figures.twice_in_table += writes.total() - len(writes)
    figures.twice_in_topic += sends.total() - len(sends)
    if is_control:
        return found
    for where, times in (("table", writes), ("topic", sends)):
        if twice := [number for number, one in times.items() if one > 1]:
            found.append(f"orders that are twice in the {where}: {twice[:20]}")
    for customer in {order[1] for order in stored}:
        in_table = [number for number, one in written if one == customer]
        in_topic = [order[0] for _, order in messages if order[1] == customer]
        if in_table != in_topic:
            found.append(f"table and topic have the orders of {customer} in another order")
    return found
