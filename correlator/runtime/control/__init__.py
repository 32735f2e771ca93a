"""The control socket of an engine: commands ask a running engine by it, and tell it what to do (docs/control.md)."""
