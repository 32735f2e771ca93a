"""Connectors: each package speaks to one kind of broker and sees only the engine's ports."""
