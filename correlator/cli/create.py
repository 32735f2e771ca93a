"""`correlator create NAME`: makes a project that runs, with a crash test and the files of its deployment."""

import re
import shutil
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from correlator.cli.failures import telling
from correlator.cli.output import write_line
from correlator.errors import UsageError, quoted

LONGEST_NAME = 31
"""Linux allows no longer names of users."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SUFFIX = ".template"
"""The ending of the names of templates that tools would otherwise take for the finished files."""


class ProjectTemplate(StrEnum):
    """What `correlator create` can make: a project with monitors and an embedded broker, or one with a pipeline."""

    EMBEDDED = "embedded"
    PIPELINE = "pipeline"


_WORDS = {
    ProjectTemplate.EMBEDDED: {
        "about": "A monitor adds up what each customer has to pay. It is in `monitors.py`, and its crash test in\n"
        "`test_crashes.py`.",
        "code": "@name@.yaml monitors.py",
        "extras": "http",
        "output": "bills",
        "test": "pip install pytest\npython -m pytest",
    },
    ProjectTemplate.PIPELINE: {
        "about": "A pipeline on Spark picks large orders. Its steps and their tests are in `@name@.yaml`, and its\n"
        "crash test in `test_crashes.py`.",
        "code": "@name@.yaml",
        "extras": "http,spark",
        "output": "large-orders",
        "test": "correlator test @name@.yaml\npip install pytest\npython -m pytest",
    },
}
"""The text about each kind of project in the common files."""


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator create` with `app`, the Typer application of all commands."""
    app.command("create")(create)


def create(
    directory: Annotated[
        Path, typer.Argument(metavar="NAME", help="The directory to make; its name becomes the name of the engine.")
    ],
    template: Annotated[
        ProjectTemplate,
        typer.Option(help="embedded: monitors in Python. pipeline: steps in YAML, which Spark runs."),
    ] = ProjectTemplate.EMBEDDED,
) -> None:
    """Make a project that runs: configuration, code, crash test, and files for systemd and containers.

    NAME is a new or an empty directory. The project needs no broker: it uses an embedded one until you name yours.
    """
    with telling():
        name = directory.absolute().name
        if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
            allowed = f"Small letters, digits and single hyphens, a letter first, at most {LONGEST_NAME} characters"
            raise UsageError("E2035", quoted(name), "is no name of a project", allowed)
        files = files_of(template, name)
        _write(directory, files)
    write_line(f"{directory}: {', '.join(sorted(files))}")
    write_line(f"Next: cd {directory}, and read README.md")


def files_of(template: ProjectTemplate, name: str) -> dict[str, str]:
    """Return the content of each file of a project, by its name."""
    kinds = resources.files("correlator.cli") / "templates"
    found = [one for kind in ("common", template.value) for one in (kinds / kind).iterdir()]
    return dict(_filled(one, {**_WORDS[template], "name": name}) for one in found)


def _filled(template: Traversable, words: dict[str, str]) -> tuple[str, str]:
    file, text = template.name.removesuffix(_SUFFIX), template.read_text(encoding="utf-8")
    for word, value in words.items():  # the name comes last, because other values contain it
        text = text.replace(f"@{word}@", value)
    return file.replace("@name@", words["name"]), text


def _write(directory: Path, files: dict[str, str]) -> None:
    where = quoted(str(directory))
    try:
        made = not directory.exists()
        directory.mkdir(exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError("E2036", where, "is not empty", "", "Name a new directory, or an empty one")
        try:
            for file, text in files.items():
                (directory / file).write_text(text, encoding="utf-8")
        except OSError:
            if made:
                shutil.rmtree(directory, ignore_errors=True)
            raise
    except OSError as error:
        raise UsageError("E2036", where, f"cannot be written: {error.strerror}") from error
