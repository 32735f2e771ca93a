"""Schema revisions of the store, run by `correlator.storage.migrate`, never by hand."""
