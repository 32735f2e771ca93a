"""The control socket of an engine: through it, commands query and control a running engine (docs/control.md)."""
