"""A broker with authentication: tokens that are valid, invalid, expired or changed, and roles without permission."""

import base64
import hashlib
import hmac
import json
import secrets
import time

import pytest

from correlator import Engine, Monitor, PartStatus, on
from correlator.events import Message, Outgoing
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S
from tests.connectors.rabbit import codes, lost, opened
from tests.pulsar_server import PulsarServer
from tests.servers import running

pytestmark = pytest.mark.pulsar
AUTHENTICATION = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
CLIENT = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
RECEIVER = ReceiverSettings(id="r", connection="pulsar", destination="queue:q")
SENDER = SenderSettings(id="s", connection="pulsar", destination="queue:q")
SOON = {"connection_retry_interval": 0.1, "max_connection_retry_interval": 0.1}
MESSAGES = [Outgoing(1, "", "queue:q", Message(b"1"))]


def token(key, role, **claims):
    """A JSON web token for a role, signed with HMAC."""
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": role, **claims})]
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = hmac.new(key, signed, hashlib.sha256).digest()
    return b".".join([signed, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


@pytest.fixture(scope="module")
def key():
    return secrets.token_bytes(32)


@pytest.fixture(scope="module")
def guarded(key, tmp_path_factory):
    file = tmp_path_factory.mktemp("key") / "secret.key"
    file.write_bytes(key)
    admin = token(key, "admin")
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": AUTHENTICATION,
        "tokenSecretKey": f"file://{file}",
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
        "brokerClientAuthenticationPlugin": CLIENT,
        "brokerClientAuthenticationParameters": f"token:{admin}",
        "authenticationRefreshCheckSeconds": "1",
    }
    with running(PulsarServer(settings, admin)) as server:
        yield server


def test_a_good_token(guarded: PulsarServer, key):
    with opened(guarded.connection(token=token(key, "admin")).sink(SENDER)) as sink:
        assert not any(sink.send(MESSAGES))


def test_s5_5_a_password_is_a_token(guarded: PulsarServer, key):
    pair = {"user": "anybody", "password": f"token:{token(key, 'admin')}"}
    with opened(guarded.connection(**pair).sink(SENDER)) as sink:
        assert not any(sink.send(MESSAGES))


@pytest.mark.parametrize("kind", ["none", "garbage", "another key", "expired"])
def test_a_bad_token(guarded: PulsarServer, key, kind):
    options = {
        "none": {},
        "garbage": {"token": "garbage"},
        "another key": {"token": token(b"x" * 32, "admin")},
        "expired": {"token": token(key, "admin", exp=int(time.time()) - 10)},
    }[kind]
    connection = guarded.connection(**options)
    for end in (connection.source(RECEIVER), connection.sink(SENDER)):
        error = lost(end.connect)
        assert error.code == "E7002"
        assert error.todo == "Check token or token_file"
        assert "garbage" not in str(error)


def test_a_role_without_permission(guarded: PulsarServer, key):
    connection = guarded.connection(token=token(key, "bob"))
    for end in (connection.source(RECEIVER), connection.sink(SENDER)):
        assert lost(end.connect).code == "E7007"
    with opened(connection.sink(SenderSettings(id="s", connection="pulsar"))) as sink:
        assert codes(sink.send(MESSAGES)) == ["E8107"]


def test_a_role_that_may_only_send(guarded: PulsarServer, key):
    guarded.request("POST", "namespaces/public/default/permissions/carol", ["produce"])
    with opened(guarded.connection(token=token(key, "carol")).sink(SENDER)) as sink:
        assert not any(sink.send(MESSAGES))


def test_s1_6_a_receiver_that_may_not_subscribe_says_so_and_tries_again(guarded: PulsarServer, key):
    settings = EngineSettings(
        name="waits", receivers=(RECEIVER,), monitors=(MonitorSettings(type=f"{__name__}:Silent"),), **SOON
    )
    with Engine(settings, connections={"pulsar": guarded.connection(token=token(key, "dave"))}) as engine:
        refused = condition(engine, PartStatus.ERROR)
        assert "E7007" in refused.error
        assert "Grant the permission on the namespace" in refused.error
        guarded.request("POST", "namespaces/public/default/permissions/dave", ["consume"])
        condition(engine, PartStatus.OK)


class Silent(Monitor):
    @on(Message)
    def one(self, message: Message) -> None:
        pass


def condition(engine, status):
    """Wait until the receiver has this status; returns its condition."""
    deadline = time.monotonic() + PATIENCE_S
    while (now := engine.status().conditions["r"]).status is not status:
        assert time.monotonic() < deadline, now
    return now


def test_browsing_needs_permission_too(guarded: PulsarServer, key):
    web = {"web_service_url": f"http://127.0.0.1:{guarded.web_port}"}
    with opened(guarded.connection(token=token(key, "admin")).sink(SENDER)) as sink:
        assert not any(sink.send(MESSAGES))
    assert lost(lambda: guarded.connection(token=token(key, "erin"), **web).browse("queue:q", 1)).code == "E7007"
    assert bodies_shown(guarded.connection(token=token(key, "admin"), **web)) == [b"1"]
    guarded.request("POST", "namespaces/public/default/permissions/erin", ["consume"])
    assert bodies_shown(guarded.connection(token=token(key, "erin"), **web)) == [b"1"]


def bodies_shown(connection):
    return [message.body for message in connection.browse("queue:q", 1)]


def test_a_token_file_is_read_anew(guarded: PulsarServer, key, tmp_path):
    file = tmp_path / "token"
    connection = guarded.connection(token_file=str(file))
    source = connection.source(RECEIVER)
    missing = lost(source.connect)
    assert missing.code == "E7002"
    assert f"token_file {file} cannot be read: no such file or directory" in str(missing)
    file.write_text("garbage")
    assert lost(source.connect).code == "E7002"
    file.write_text(token(key, "admin") + "\n")
    with opened(source):
        pass


def test_a_token_that_expires_is_asked_for_again(guarded: PulsarServer, key, tmp_path):
    file = tmp_path / "token"
    expiry = int(time.time()) + 3
    file.write_text(token(key, "admin", exp=expiry))
    with opened(guarded.connection(token_file=str(file), timeout_s=5).sink(SENDER)) as sink:
        file.write_text(token(key, "admin"))
        while time.time() < expiry + 3:
            assert not any(sink.send(MESSAGES))


def test_a_doctor_who_may_not_see_everything(guarded: PulsarServer, key):
    """A client may use topics, but not see the settings of brokers and the policies of namespaces."""
    guarded.request("POST", "namespaces/public/default/permissions/clerk", ["produce", "consume"])
    web = {"web_service_url": f"http://127.0.0.1:{guarded.web_port}"}
    findings = guarded.connection(token=token(key, "clerk"), **web).examine([RECEIVER], [SENDER])
    assert [one.code for one in findings] == ["W7161", "W7161"]
    assert "settings of the brokers" in str(findings[0])
    assert "policies of public/default" in str(findings[1])
    assert guarded.connection(token=token(key, "admin"), **web).examine([RECEIVER], [SENDER]) == []
    (refused,) = guarded.connection(token="garbage", **web).examine([RECEIVER], [SENDER])
    assert refused.code == "E7002"
