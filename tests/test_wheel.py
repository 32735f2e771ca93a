"""The wheel as users install it: what it adds to their import path, and that it works beside packages of theirs."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from correlator.storage import migrate
from correlator.storage.database import reading

ROOT = Path(__file__).parent.parent
BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
COMMAND = "import sys; from correlator.cli.entry import main; print(sys.modules['correlator'].__file__); main()"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-c", BUILD, str(directory)], cwd=ROOT, check=True, capture_output=True)
    (built,) = directory.glob("correlator-*.whl")
    return zipfile.Path(built)


def test_a_wheel_adds_three_packages_and_nothing_else_to_the_import_path(wheel: zipfile.Path) -> None:
    names = {one.name for one in wheel.iterdir() if not one.name.endswith(".dist-info")}
    assert names == {"correlator", "connectors", "pyspark_correlator"}
    assert all((wheel / package / "py.typed").exists() for package in names)  # type checkers look for it


def test_a_wheel_has_the_files_of_the_status_page_and_their_licences(wheel: zipfile.Path) -> None:
    place = "correlator/runtime/http/page"
    mine = {path.relative_to(ROOT).as_posix() for path in (ROOT / place).rglob("*") if path.is_file()}
    assert mine
    assert mine == {name for name in wheel.root.namelist() if name.startswith(place) and not name.endswith("/")}


def test_an_installed_wheel_upgrades_a_store_beside_a_package_migrations_of_the_user(
    wheel: zipfile.Path, tmp_path: Path
) -> None:
    installed, own = tmp_path / "site-packages", tmp_path / "own"
    wheel.root.extractall(installed)
    (own / "migrations" / "versions").mkdir(parents=True)
    for name in ("__init__", "env", "versions/__init__", "versions/0001_first"):
        (own / "migrations" / f"{name}.py").write_text("raise SystemExit('the migrations of the user')")
    url = f"sqlite:///{own}/store.db"
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "db", "upgrade", url],  # -c: the current directory is first on the path
        cwd=own,
        env={"PYTHONPATH": str(installed), "PATH": "", "HOME": str(own)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [str(installed / "correlator" / "__init__.py"), f"new -> {migrate.HEAD}"]
    with reading(url) as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM correlator_schema").scalar_one() == migrate.HEAD
