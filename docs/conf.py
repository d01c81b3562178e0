"""The site: `sphinx-build -W docs build/site` builds it from pages, notebooks, docstrings and the gallery."""

import shutil
import sys
from pathlib import Path

from sphinx_gallery.sorting import FileNameSortKey

import meshlab

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))
shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", dirs_exist_ok=True)  # links lead out of a symbolic link
sys.modules["meshlab.plot"] = meshlab.plot  # the folder is meshlab.plots, and users write meshlab.plot

project = "meshlab"
author = "The meshlab developers"
project_copyright = author
release = version = meshlab.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
    "sphinx_gallery.gen_gallery",
    "public_names",
    "themed_figures",
]
root_doc = "index"
exclude_patterns = [
    "extensions",
    "gallery",
    "gallery_pages/**/*.ipynb",
    "gallery_pages/**/*.py",
    "sg_execution_times.rst",
]
templates_path = ["_templates"]
default_role = "py:obj"
suppress_warnings = ["config.cache"]

# Notebooks have their outputs: `python -m tests.notebooks` runs them.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections have the types
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": ["gallery"],
    "gallery_dirs": ["gallery_pages"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": FileNameSortKey,
    "image_scrapers": ("themed_figures.scrape",),
    "reset_modules": ("themed_figures.close_figures",),
    "capture_repr": (),
    "doc_module": ("meshlab",),
    "backreferences_dir": "reference/examples",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 10_000,
    "remove_config_comments": True,
    "abort_on_example_error": True,
}

html_theme = "pydata_sphinx_theme"
html_title = "meshlab"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
