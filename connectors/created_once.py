"""Creates files and directories completely, for their owner only, under durable names, without
replacing existing ones.
"""

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from correlator import durable

_PART = ".part"
_ODD = re.compile(r"[^A-Za-z0-9-]+")


def name_of_source(source: str) -> str:
    """Return the name for the files and directories of a source. Other programs ignore names that begin
    with `_` or `.`.
    """
    digest = hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{digest}-{_ODD.sub('_', source)[:100]}"


def make_durable_directory(path: Path) -> None:
    """Make a directory and its missing parents, accessible to the owner only, under durable names."""
    if path.is_symlink() or not path.is_dir():
        if path.parent != path:
            make_durable_directory(path.parent)
        path.mkdir(durable.PRIVATE_DIRECTORY, exist_ok=True)
        durable.sync_directory(path.parent)


def create_once(path: Path, content: bytes) -> bool:
    """Make a file with this content unless its name exists; it is durable then. Returns whether this call made it."""
    try:
        with named_once(path) as partial:
            durable.put(partial, content)
    except FileExistsError:
        return False
    durable.sync_directory(path.parent)
    return True


@contextlib.contextmanager
def named_once(path: Path) -> Iterator[Path]:
    """Let the block write a file, then name it by a link, which never replaces a file, as a rename would."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_PART}")
    try:
        yield partial
        os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)
