"""The flights example: its monitor, and what makes its data."""
