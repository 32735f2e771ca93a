"""Objects as destinations: JSON lines and Parquet files in a folder, or in a bucket of an S3 store."""

from connectors.objects.connection import ObjectsConnection

__all__ = ["ObjectsConnection"]
