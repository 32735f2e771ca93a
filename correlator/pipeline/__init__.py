"""Pipelines on Spark: their settings, their steps as SQL and Arrow functions, and the processor that runs them.

Importing `correlator.pipeline.spec` needs no Spark; `correlator.pipeline.processor` does.
"""
