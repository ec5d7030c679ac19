"""The site: tools/build_site makes it. Pages are those of this folder; what lies outside of it, and is a page, is drawn in by
`project/`."""

import re
import sys
from pathlib import Path

from pygments.lexers.special import TextLexer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "_ext"))


def version():
    found = dict(re.findall(r"#define FA_VERSION_(MAJOR|MINOR|PATCH) (\d+)", (ROOT / "include/flashattn.h").read_text()))
    return "{MAJOR}.{MINOR}.{PATCH}".format(**found)


project = "libflashattn"
release = version()
version = release
author = copyright = "the authors of libflashattn"
html_show_copyright = False
language = "en"

extensions = ["myst_parser", "sphinx_copybutton", "header_reference", "measurements", "outside_links"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
exclude_patterns = ["_*", "generated/README*"]
suppress_warnings = ["myst.header"]
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "monokai"
smartquotes = False
c_extra_keywords = []
c_maximum_signature_line_length = 90
toc_object_entries = False
add_function_parentheses = True

html_theme = "furo"
html_title = "libflashattn " + release
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_last_updated_fmt = None
html_theme_options = {
    "sidebar_hide_name": False,
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0b5cad", "color-brand-content": "#0b5cad"},
    "dark_css_variables": {"color-brand-primary": "#7cb7ff", "color-brand-content": "#7cb7ff"},
}
copybutton_selector = "div.highlight-c pre, div.highlight-python pre, div.highlight-sh pre, div.highlight-cmake pre"


def setup(app):
    for word in ("example", "output"):  # of SPEC.md and the tutorial: what tests read
        app.add_lexer(word, TextLexer)
