"""Reads a file that may grow, and notices if the content that it has read was changed."""

import os

from correlator.errors import ConnectionLost

_COMPARED_BYTES = 4096


class GrowingFile:
    """Reads from an open file.

    Args:
        where: names the file in messages.
        descriptor: descriptor of the file.
    """

    def __init__(self, where: str, descriptor: int) -> None:
        self._where = where
        self._descriptor = descriptor
        self._seen, self._seen_to = b"", 0

    def read(self, size: int, offset: int) -> bytes:
        """Read at most `size` bytes. Raises as `check`."""
        if offset != self._seen_to:
            self._seen, self._seen_to = b"", offset
        block = os.pread(self._descriptor, size, offset)
        self.check()  # after the reading, so that the block is what follows the bytes that were seen before
        self._seen, self._seen_to = (self._seen + block)[-_COMPARED_BYTES:], offset + len(block)
        return block

    def check(self) -> None:
        """Raise `ConnectionLost` E7011 if the bytes that were read last have changed since."""
        offset = self._seen_to
        size = os.fstat(self._descriptor).st_size
        if size < offset:
            what = f"the file was cut to {size} bytes while it was being read"
        elif os.pread(self._descriptor, len(self._seen), offset - len(self._seen)) != self._seen:
            what = f"the file was overwritten before byte {offset} while it was being read"
        else:
            return
        raise ConnectionLost(
            "E7011", self._where, what, "A file may only grow, or be renamed and followed by a new one"
        )
