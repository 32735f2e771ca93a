"""One module for each revision; none is changed after its release."""
