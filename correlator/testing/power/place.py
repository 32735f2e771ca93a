"""Reads and replaces the content of a directory that stands for the disk under test."""

import os
from collections.abc import Mapping
from pathlib import Path


def held(directory: Path) -> dict[str, bytes]:
    """Return the content of each file of the directory, by name."""
    return {there.name: there.read_bytes() for there in directory.iterdir()}


def put(directory: Path, files: Mapping[str, bytes | bytearray]) -> Path:
    """Make the directory hold these files and no others; return the directory."""
    for there in directory.iterdir():
        if there.name not in files:
            there.unlink()
    for name, content in files.items():
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.close(descriptor)
    return directory
