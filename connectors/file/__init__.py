"""Files as queues: reads CSV and JSON lines, writes JSON lines, each line once whatever is killed."""

from connectors.file.connection import FileConnection

__all__ = ["FileConnection"]
