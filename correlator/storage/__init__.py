"""The one place that knows SQL: an engine's durable truth in a SQLite file or a PostgreSQL schema."""
