"""Sphinx configuration; builds without network access."""

import importlib.util
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "_ext"))

from skfedcal import __version__

project = "skfedcal"
copyright = "skfedcal contributors"
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
    "changelog",
    "name_breaks",
]
if os.environ.get("SKFEDCAL_DOCS_ONLINE"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "sklearn": ("https://scikit-learn.org/stable", None),
    }

templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates", "auto_examples/*.ipynb"]

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
# A reference that leads nowhere is a warning. Those to scikit-learn need network, and
# numpydoc links properties that are listed as attributes.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"sklearn\..*"),
    (r"py:(obj|attr)", r"head|privacy_|reason_|alarms_|n_periods_|names_"),
    (r"py:(obj|attr)", r"estimator_|calibrator_"),
]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = f"skfedcal {release}"
html_theme_options = {
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_align": "left",
}
html_sidebars = {"index": [], "changelog": [], "api": ["sidebar-nav-bs"]}
html_show_sourcelink = False
html_static_path = ["_static"]
# One file that draws formulas without network, from a package of the extra "docs".
# Where it is not installed, the pages load MathJax from the internet.
if offline := importlib.util.find_spec("sphinx-mathjax-offline"):
    folder = Path(offline.origin).parent / "static" / "mathjax"
    html_static_path.append(str(folder / "tex-svg-full.js"))
    mathjax_path = "tex-svg-full.js"
html_css_files = ["site.css"]
toc_object_entries_show_parents = "hide"

# These need torch, which the extra "docs" does not install: without it they are shown,
# and not executed.
with_torch = "federated_training|mnist_writers|your_own_method"
executed = "plot_" if importlib.util.find_spec("torch") else f"plot_(?!{with_torch})"

sphinx_gallery_conf = {
    "filename_pattern": executed,
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "doc_module": "skfedcal",
    "backreferences_dir": "generated/backreferences",
    "reset_modules": ("matplotlib",),
    "within_subsection_order": "gallery_order.place",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "plot_gallery": os.environ.get("SKFEDCAL_DOCS_GALLERY", "1") == "1",
}
