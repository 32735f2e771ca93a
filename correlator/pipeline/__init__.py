"""Pipelines on Spark: what a pipeline file says, its steps as SQL and Arrow functions, the processor that runs them.

Importing `correlator.pipeline.spec` needs no Spark; `correlator.pipeline.processor` does.
"""
