"""How the documentation is built: Sphinx with Markdown by MyST; script/docs runs it.

Sphinx because it is maintained, checks every link between pages, and can make warnings errors.
"""

project = "retinue"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "retinue"
exclude_patterns = ["*.py", "pictures", "schemas", "_build"]
html_extra_path = ["schemas"]
myst_heading_anchors = 3
# Blocks in the languages that people read, some of them with a file's name behind.
suppress_warnings = ["misc.highlighting_failure"]
