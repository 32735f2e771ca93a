"""The arguments that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

ConfigurationFile = Annotated[Path, typer.Argument(metavar="FILE", help="The configuration file.", show_default=False)]
ConnectionName = Annotated[
    str, typer.Argument(metavar="CONNECTION", help="Name of a connection in the file.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="In place of what the file says.", show_default=False),
]
Target = Annotated[
    str, typer.Argument(metavar="FILE_OR_STORE_URL", help="A configuration file, or the store's address.")
]
