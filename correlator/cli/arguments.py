"""The arguments that several commands take."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

ConfigurationFile = Annotated[Path, typer.Argument(metavar="FILE", help="Configuration file.", show_default=False)]
ConnectionName = Annotated[
    str, typer.Argument(metavar="CONNECTION", help="Name of a connection in FILE.", show_default=False)
]
LogConfiguration = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration file of the engine; modules may lie beside it. Default: the settings in LOG.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Override a setting of FILE, as in checkpoint.interval=1s. May be repeated; the later value counts.",
        show_default=False,
    ),
]
Share = Annotated[
    int | None,
    typer.Option("--share", metavar="NUMBER", help="Number of the share, if FILE has shares.", show_default=False),
]
Target = Annotated[
    str, typer.Argument(metavar="FILE_OR_STORE_URL", help="Configuration file, or URL of the store: sqlite:///PATH.")
]

Yes = Annotated[
    bool, typer.Option("--yes", help="Do it. Without this option the command only shows what would be lost.")
]


class LogLevel(StrEnum):
    """A level of the log."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
