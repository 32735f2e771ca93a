"""docs/objects.md: its example with a bucket runs as the page says; `test_pages.py` runs the other ones."""

import json
from pathlib import Path

import pytest

from connectors.embedded import EmbeddedConnection
from connectors.messaging import ConnectionFactory
from correlator import Engine, Message
from correlator.cli import main
from tests.docs.test_pages import ROOT, blocks, write_files
from tests.s3_server import S3Server
from tests.waiting import wait_until

PAGE = ROOT / "docs" / "objects.md"


@pytest.mark.parametrize("name", ["archive.yaml", "sales.yaml", "bucket.yaml"])
def test_the_files_are_without_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write_files(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert {one.name for one in tmp_path.glob("*.yaml")} == {"archive.yaml", "sales.yaml", "bucket.yaml"}
    for variable, value in (("ENDPOINT", "https://s3.example.com"), ("ACCESS_KEY", "key"), ("SECRET_KEY", "secret")):
        monkeypatch.setenv(f"S3_{variable}", value)
    assert main.execute(["lint", name]) == 0, capsys.readouterr()


def test_the_example_with_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> None:
    (text,) = (text for kind, text in blocks(PAGE) if text.startswith("# bucket.yaml\n"))
    monkeypatch.chdir(tmp_path)
    Path("bucket.yaml").write_text(text)
    s3.client.create_bucket(Bucket="archive")
    for variable in ("endpoint", "access_key", "secret_key"):
        monkeypatch.setenv(f"S3_{variable.upper()}", s3.options[variable])
    with ConnectionFactory(EmbeddedConnection, {"store": "sqlite:///broker.db"}).create_connection() as connection:
        producer = connection.create_session().create_producer("queue:bills")
        for number in range(1, 11):
            producer.send(Message(json.dumps({"number": number}).encode()))
    with Engine.from_yaml("bucket.yaml") as engine:
        wait_until(lambda: engine.status().senders["objects"][1].sent == 10)
    found = s3.client.list_objects_v2(Bucket="archive", Prefix="shop/bills/")["Contents"]
    keys = [one["Key"] for one in found if one["Key"].endswith(".jsonl")]
    lines = [
        line for key in keys for line in s3.client.get_object(Bucket="archive", Key=key)["Body"].read().splitlines()
    ]
    assert [json.loads(line)["number"] for line in lines] == list(range(1, 11))
