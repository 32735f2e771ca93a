"""The command line: one module for each command, imported only when the command is called.

A command writes results to standard output, and everything else to standard error. No mistake of a user shows a
traceback. The exit status is the one of the error's class (`correlator.errors`).
"""
