"""The connector `http`: receives messages as requests (webhooks), and sends messages as requests (docs/web.md)."""

from connectors.http.connection import HttpConnection

__all__ = ["HttpConnection"]
