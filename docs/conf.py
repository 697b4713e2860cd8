"""The site's settings, for Sphinx. `make docs` builds it into build/docs; every warning is an error.

The sources are the repository's own Markdown files where they lie, so that their links hold there and on the site.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import mslsq  # noqa: E402 (this checkout's, whatever is installed)

project, author, project_copyright = "mslsq", "the authors of mslsq", "the authors of mslsq"
version = release = mslsq.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "api_pages"]
include_patterns = ["docs/**", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/results/*.md"]
exclude_patterns = ["docs/_*", "**/__pycache__"]
root_doc = "docs/index"

myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # a page of results begins where its table does

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
python_display_short_literal_types = True
maximum_signature_line_length = 90
add_module_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "mslsq"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "start.html"}  # the root's page sends on to the index in docs/
templates_path = ["_templates"]
html_copy_source = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "friendly", "monokai"
