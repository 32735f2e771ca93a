"""The command line: one module for each command, imported only when the command is called.

A command writes results to standard output, and everything else to standard error. No mistake of a user shows a
traceback. The class of the error determines the exit status (`correlator.errors`).
"""
