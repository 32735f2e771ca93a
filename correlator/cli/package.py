"""`correlator package FILE -o ZIP`: writes the modules that the workers of a Spark cluster need."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from correlator.cli.arguments import ConfigurationFile
from correlator.cli.failures import telling
from correlator.cli.loading import directory_of, importable, load
from correlator.cli.output import write_line
from correlator.errors import UsageError, quoted
from correlator.pipeline.packaging import Package, package_of


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator package` with `app`, the Typer application of all commands."""
    app.command("package")(package)


def package(
    file: ConfigurationFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="ZIP", help="The file to write.")],
) -> None:
    """Write a zip file with the modules that the workers of a Spark cluster need.

    These are the modules of correlator, the modules that the steps of FILE name, and the modules of your own source
    that these import. Equal modules give an equal file. An engine whose 'spark.master' is a cluster makes such a file
    at its start and gives it to the workers, so you need the command only to see what is in it, or to put it into an
    image of workers.
    """
    with importable(file):
        loaded = load(file)
        with telling(loaded.secrets.redact):
            found = package_of(loaded.settings.pipelines, [directory_of(file)])
            _write(found, output)
    write_line(f"{output}: {len(found.files)} modules of {', '.join(found.packages)}")
    version = ".".join(map(str, sys.version_info[:2]))
    write_line(f"The workers need Python {version} with {', '.join(found.needed)}")


def _write(found: Package, output: Path) -> None:
    if output.suffix != ".zip":
        raise UsageError("E2032", quoted(str(output)), "is not named .zip", "Spark imports from .zip files only")
    try:
        found.write(output)
    except OSError as error:
        raise UsageError("E2032", quoted(str(output)), f"cannot be written: {error.strerror}") from error
