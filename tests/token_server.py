"""An authorization server on loopback, which gives clients signed tokens (OAuth 2.0 client credentials), for tests."""

import base64
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

CLIENT, SECRET, AUDIENCE = "billing", "the-secret-of-a-client", "kafka"
_NUMBER_BYTES = 32


def keys(key: Path) -> str:
    """The public key (a key set of JSON Web Keys) by which others verify tokens that a key of P-256 has signed."""
    point = _openssl("ec", "-in", key, "-pubout", "-outform", "DER")[-2 * _NUMBER_BYTES :]
    x, y = _text(point[:_NUMBER_BYTES]), _text(point[_NUMBER_BYTES:])
    return json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "test", "x": x, "y": y}]})


def token(key: Path, lasts_s: int = 3600) -> str:
    """A token for `CLIENT`, which the key signs."""
    now_s = int(time.time())
    head = {"alg": "ES256", "typ": "JWT", "kid": "test"}
    claims = {"sub": CLIENT, "aud": AUDIENCE, "iat": now_s, "exp": now_s + lasts_s}
    signed = ".".join(_text(json.dumps(part).encode()) for part in (head, claims))
    return f"{signed}.{_text(_numbers(_openssl('dgst', '-sha256', '-sign', key, content=signed.encode())))}"


class TokenServer(ThreadingHTTPServer):
    """Gives `CLIENT` the token, while there is one.

    Attributes:
        token: the token; "" to refuse every client.
        scopes: what clients asked for.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = ""
        self.scopes: list[str] = []

    @property
    def url(self) -> str:
        """Where clients get tokens."""
        return f"http://127.0.0.1:{self.server_port}/token"

    def settings(self, secret: str = SECRET) -> dict[str, str]:
        """The settings with which a client of Kafka asks it."""
        return {
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.token.endpoint.url": self.url,
        }


class _Handler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        """Answer a request for a token."""
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.scopes += asked.get("scope", [])
        known = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if self.headers["Authorization"] == known and self.server.token:
            status, answer = 200, {"access_token": self.server.token, "token_type": "Bearer", "expires_in": "3600"}
        else:
            status, answer = 401, {"error": "invalid_client", "error_description": "no such client"}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002  # the name of the base class
        """Write nothing."""


@contextmanager
def giving_tokens() -> Iterator[TokenServer]:
    """A server, until the end of the block."""
    with TokenServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def _openssl(*arguments: object, content: bytes = b"") -> bytes:
    command = ["openssl", *map(str, arguments)]
    return subprocess.run(command, input=content, check=True, capture_output=True).stdout


def _numbers(signature: bytes) -> bytes:
    """The two numbers of a signature, which `openssl` writes in DER, each in 32 bytes."""
    length = signature[3]
    first, second = signature[4 : 4 + length], signature[6 + length :]
    return b"".join(one.lstrip(b"\0").rjust(_NUMBER_BYTES, b"\0") for one in (first, second))


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
