"""Sphinx: Markdown pages; those generated from the repository are written first (scripts/docs_pages.py)."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

import docs_pages  # noqa: E402
from docutils import nodes  # noqa: E402
from docutils.utils.math import latex2mathml  # noqa: E402
from pygments.lexers.shell import BashLexer  # noqa: E402
from pygments.token import Comment  # noqa: E402
from sphinx.ext.autodoc.mock import _MockObject  # noqa: E402

from covey import __version__  # noqa: E402

docs_pages.write_all(ROOT)

project = "Covey"
author = "The Covey contributors"
copyright = f"2026, {author}"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
copybutton_prompt_text = r"(\$|>>>) "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go, .cs"  # .cs: see _Shell
html_math_renderer = "mathml"  # see setup
smartquotes_action = "qe"  # quotes and dots, but -- stays: it begins an option
exclude_patterns = ["_build", "requirements.txt"]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"Covey {__version__}"
html_static_path = ["static"]
html_css_files = ["covey.css"]

# The API reference: Google's docstrings, types from the annotations. Missing packages are mocked.
_PACKAGES = "torch transformers trl accelerate peft datasets safetensors pyarrow numpy matplotlib rich"
autodoc_mock_imports = [name for name in _PACKAGES.split() if find_spec(name) is None]
_MockObject.__or__ = _MockObject.__ror__ = lambda self, other: self  # `Tensor | None` at the top of a module
_MockObject.__sphinx_empty_attrs__ |= {"__wrapped__"}  # else unwrapping a mocked function never ends
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"show-inheritance": False}
napoleon_use_rtype = False
suppress_warnings = ["autodoc.mocked_object"]


def _as_rst(app, what, name, obj, options, lines):
    """Docstrings are plain text with `code` between single ticks; reStructuredText needs two, and escaped stars."""
    text = "\n".join(lines)
    text = re.sub(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)", lambda found: "``" + " ".join(found[1].split()) + "``", text)
    parts = re.split(r"(``[^`]*``)", text)
    escaped = [part if part.startswith("``") else re.sub(r"(?<!\\)([*|])", r"\\\1", part) for part in parts]
    lines[:] = "".join(escaped).split("\n")


def _pointed(app, docname, source):
    source[0] = docs_pages.pointed(ROOT, source[0], Path(app.env.doc2path(docname)))


_NAMED = {**latex2mathml.operators, **latex2mathml.ordinary, "cdot": "·"}
_IN_TEX = str.maketrans(
    {sign: rf"\{name} " for name, sign in _NAMED.items() if len(sign) == 1 and not sign.isascii() and name.isalpha()}
)  # docutils reads names of signs, not the signs


def _as_mathml(as_block):
    """Formulas as MathML, made here: browsers draw it themselves, so the pages need no script and no network."""

    def visit(translator, node):
        translator.body.append(latex2mathml.tex2mathml(node.astext().translate(_IN_TEX), as_block=as_block))
        raise nodes.SkipNode

    return visit, None


class _Shell(BashLexer):
    """Gives comments a class of their own, which copying leaves out: on its command line zsh takes them for words."""

    def get_tokens_unprocessed(self, text):
        for place, kind, value in super().get_tokens_unprocessed(text):
            yield place, Comment.Special if kind is Comment.Single else kind, value


_MOVED = {
    "getting_started": "training",
    "tutorial": "training",
    "report": "evaluation",
    "exploration": "objectives",
    "several_processes": "launching",
}
"""Former pages, and those that hold their text now: the addresses of the former lead there."""


def _lead_on(app, error):
    if app.builder.name == "html" and error is None:
        for former, now in _MOVED.items():
            text = f'<meta http-equiv="refresh" content="0; url={now}.html"><a href="{now}.html">Moved</a>'
            Path(app.outdir, f"{former}.html").write_text(text, encoding="utf-8")


def setup(app):
    app.add_lexer("bash", _Shell)
    app.add_lexer("sh", _Shell)
    app.add_html_math_renderer("mathml", _as_mathml(False), _as_mathml(True))
    app.connect("source-read", _pointed)
    app.connect("build-finished", _lead_on)
    app.connect("autodoc-process-docstring", _as_rst, priority=100)  # before napoleon, which adds stars of its own
