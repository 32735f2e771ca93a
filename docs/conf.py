"""Settings of Sphinx: `sphinx-build -W --keep-going docs build/site` makes the site of the documentation."""

import importlib.metadata

project = "correlator"
version = release = importlib.metadata.version("correlator")
extensions = ["myst_parser"]
myst_heading_anchors = 4
exclude_patterns = ["examples"]
suppress_warnings = ["misc.highlighting_failure"]  # an example of a file begins with a comment that names the file
html_theme = "furo"
html_title = f"correlator {version}"
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
