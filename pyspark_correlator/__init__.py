"""The format `correlator` of Spark: reads the tables of a store, and writes rows into queues of an embedded broker.

PySpark imports the installed packages whose names begin with `pyspark_`, and registers the `DefaultSource` of each. So
programs use the format without an import: `spark.read.format("correlator")`.
"""

from pyspark_correlator.source import CorrelatorSource

DefaultSource = CorrelatorSource

__all__ = ["CorrelatorSource", "DefaultSource"]
