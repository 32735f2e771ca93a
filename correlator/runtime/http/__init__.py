"""The HTTP server that shows what an engine does (docs/http.md)."""
