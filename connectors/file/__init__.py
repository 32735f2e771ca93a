"""Files as queues: reads CSV and JSON lines; writes JSON lines, each message once even if a process is killed."""

from connectors.file.connection import FileConnection

__all__ = ["FileConnection"]
