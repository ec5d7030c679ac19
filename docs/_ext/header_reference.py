"""The reference from the comments of include/flashattn.h and its neighbours: the directive `header` puts a section of one on a page.

    .. header:: backward
    .. header:: the calls
       :of: flashattn_cp.h

`overview` is the comment at the head of the file. A section on no page, or on two, is a warning, which ends the build.
"""

import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import header_manual  # noqa: E402

HEADERS = ("flashattn.h", "flashattn_cp.h", "flashattn_cp_mpi.h", "flashattn_cp_nccl.h")  # the first is meant where none is named
IDENTIFIER = re.compile(r"\b(fa_\w+|FA_\w+)\b(?!…)")
log = logging.getLogger(__name__)


def manual_of(header):
    return header_manual.read(ROOT / "include" / header)


def roles():
    found = {}
    for d in (d for header in HEADERS for d in manual_of(header).declarations()):
        if d.kind != "enum":
            found[d.name] = {"function": "func", "struct": "struct", "macro": "macro", "type": "type"}[d.kind]
        if d.kind == "enum":
            found |= {m.name: "macro" for m in d.members if m.name}
    return found


def sentence(text):
    """With a capital, unless a name begins it."""
    return text if "_" in text.split(" ")[0] else text[:1].upper() + text[1:]


class Writer:
    """Sections as reStructuredText."""

    def __init__(self):
        self.roles = roles()

    def prose(self, text):
        """Escaped, its *emphasis* kept, each name that the header declares a link."""
        text = re.sub(r"\s+", " ", text)
        out, at = [], 0
        for found in re.finditer(r"\*(\w+)\*|`([^`]+)`|" + IDENTIFIER.pattern, text):
            emphasis, code, name = found.groups()
            if name and name not in self.roles:
                continue
            piece = f"*{emphasis}*" if emphasis else f"``{code}``" if code else f":c:{self.roles[name]}:`{name}`"
            out += [re.sub(r"([\\*`|_])", r"\\\1", text[at : found.start()]), "\\ ", piece, "\\ "]
            at = found.end()
        return "".join(out) + re.sub(r"([\\*`|_])", r"\\\1", text[at:])

    def blocks(self, doc):
        for block in header_manual.blocks(doc):
            if block.kind == "text":
                yield self.prose(block.text)
            elif block.kind == "term":
                term = self.prose(block.term) if block.term in self.roles else f"``{block.term}``"
                yield f"{term}\n   {self.prose(block.text)}"
            else:
                if block.kind == "example":
                    yield self.prose(f"Example, {block.term}:")
                language = (
                    "c" if re.search(r";$|;  ", block.text, re.M) and "…" not in block.text and "·" not in block.text else "text"
                )
                yield f".. code-block:: {language}\n\n" + "\n".join("   " + line for line in block.text.splitlines())

    def entry(self, directive, signatures, paragraphs):
        lines = "\n".join(("   " + " " * len(directive) + " " * 4 if at else "") + s for at, s in enumerate(signatures))
        body = "\n\n".join(p for p in paragraphs if p)
        return f".. c:{directive}:: {lines}\n\n" + "\n".join("   " + line if line else "" for line in body.split("\n"))

    def members(self, directive, members):
        for m in members:
            if not m.name:
                yield self.prose(sentence(m.doc) + ":" * (m.doc[-1:] != "."))
                continue
            signature = m.name if directive == "macro" else m.declaration
            value = m.declaration.partition(" = ")[2] if directive == "macro" else ""
            yield self.entry(directive, [signature], [f"``{value}`` " * bool(value) + self.prose(m.doc)])

    def topic(self, topic):
        paragraphs = list(self.blocks(topic.doc))
        title = re.sub("_", r"\\_", topic.title)
        yield f"{title}\n{'~' * len(title)}"
        functions, structs = topic.of("function"), topic.of("struct", "type")
        if functions and not structs:
            yield self.entry("function", [d.text for d in functions], paragraphs)
            return
        yield from paragraphs
        for d in topic.declarations:
            if d.kind == "function":
                yield self.entry("function", [d.text], [])
            elif d.kind == "type":
                yield self.entry("type", [d.text], [])
            elif d.kind == "struct":
                yield self.entry("struct", [d.name], self.members("member", d.members))
            elif d.kind == "enum":
                yield self.prose(sentence(d.doc) + "." if d.doc else "")
                yield from self.members("macro", d.members)
            elif d.name.endswith("_INIT"):
                yield self.entry("macro", [d.name], ["The initialiser: ``struct_size`` set, all else zero."])
            else:
                yield self.entry("macro", [d.name], [f"``{d.text}`` " + self.prose(d.doc)])

    def section(self, section):
        return "\n\n".join(text for topic in section.topics for text in self.topic(topic) if text)


class HeaderSection(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"of": lambda header: directives.choice(header, HEADERS)}

    def run(self):
        header = self.options.get("of", HEADERS[0])
        manual, writer = manual_of(header), Writer()
        self.env.note_dependency(str(ROOT / "include" / header))
        title = self.arguments[0]
        if title == "overview":
            text = "\n\n".join(writer.blocks(manual.overview))
        else:
            section = next((s for s in manual.sections if s.title == title), None)
            if section is None:
                raise self.error(f"the header has no section {title!r}: {', '.join(s.title for s in manual.sections)}")
            text = writer.section(section)
        pages = getattr(self.env, "header_pages", {})
        self.env.header_pages = pages
        pages.setdefault((header, title), []).append(self.env.docname)
        found = nodes.Element()
        nested_parse_with_titles(self.state, StringList(text.splitlines(), header), found)
        return found.children


def check_sections(app, env):
    pages = getattr(env, "header_pages", {})
    for header in HEADERS:
        for title in ["overview", *(s.title for s in manual_of(header).sections)]:
            found = pages.get((header, title), [])
            if len(set(found)) != 1:
                log.warning("section %r of %s is on the pages %s: expected one", title, header, found)


def setup(app):
    app.add_directive("header", HeaderSection)
    app.connect("env-check-consistency", check_sections)
    return {"parallel_read_safe": False}
