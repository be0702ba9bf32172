"""The site: `make docs` builds it into build/docs. docs/made holds what is made from the code and its results."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the recipes are many small tensors: before torch is imported

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import tether  # noqa: E402

project = "tether"
author = "The tether developers"
copyright = "The tether developers, MIT licence"
version = release = tether.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery", "made"]
exclude_patterns = ["made", "_static", "recipes/*.py", "recipes/*.ipynb", "recipes/*.md5"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_block"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"tether {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"  # made/mathematics.py: no script, nothing from elsewhere

sphinx_gallery_conf = {
    "examples_dirs": ["../examples/gallery"],
    "gallery_dirs": ["recipes"],
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"__init__|ranks_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 0,
    "plot_gallery": True,
}

napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
nitpick_ignore_regex = [("py:class", r"\S+")]  # types of annotations: torch's, and some that are not public

# Links are checked inside the site. Outside it, `make docs` only checks that they are well formed (made/links.py).
linkcheck_ignore = [r"https?://.*"]
