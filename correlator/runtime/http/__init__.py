"""The HTTP server that shows what an engine does (docs/http.md), and the status page (docs/status-page.md)."""
