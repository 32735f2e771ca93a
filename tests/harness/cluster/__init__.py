"""Campaigns that kill the parts of a Spark cluster, and of an engine that uses it."""
