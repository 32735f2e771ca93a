"""The store of an engine, in a SQLite file or a PostgreSQL schema. Only this package knows the SQL of the store."""
