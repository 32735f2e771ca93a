"""Connector `program`: a receiver takes the messages that the program of the engine publishes (docs/publishing.md)."""

from connectors.program.connection import ProgramConnection

__all__ = ["ProgramConnection"]
