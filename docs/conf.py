"""How the documentation is built: ``python -m sphinx -W -b html docs docs/_build/html``."""

from importlib.metadata import version as installed

project = "trajscope"
author = "the trajscope developers"
release = version = installed("trajscope")
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.mathjax"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
autosummary_generate = False
autodoc_typehints = "none"
# What scikit-learn adds to every estimator is documented there
_ADDED = ("get_metadata_routing", "set_output", *(f"set_{m}_request" for m in ("fit", "partial_fit", "transform")))
autodoc_default_options = {"exclude-members": ", ".join(_ADDED)}
autodoc_inherit_docstrings = False
html_theme = "pydata_sphinx_theme"
html_title = "trajscope"
html_show_sourcelink = False
html_theme_options = {"show_prev_next": False, "navigation_with_keys": False}
# MathJax comes from an address of its own; without a network formulas show as TeX.
