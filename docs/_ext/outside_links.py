"""Links that leave docs/: to a page that the site has under project/, they go there; of any other file the site shows the name
alone, since whoever reads the site may not have the sources."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "CHANGELOG.md": "changelog",
    "bindings/python/README.md": "python",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"^(`{3,}).*?^\1", re.S | re.M)


def rewritten(text, source, page):
    """text of the file `source`, shown on the page `page`, both relative to the root: with links that hold there."""

    def link(found):
        is_image, label, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = (ROOT / source.parent / target).resolve()
        if not path.is_relative_to(ROOT):
            return found[0]
        path = path.relative_to(ROOT)
        inside = Path("docs")
        up = "../" * (len(page.relative_to(inside).parts) - 1)
        if is_image:
            return (
                f"![{label}]({up}../{path.as_posix()})"
                if not path.is_relative_to(inside)
                else f"![{label}]({up}{path.relative_to(inside).as_posix()})"
            )
        if path.as_posix() in PAGES:
            return f"[{label}]({up}project/{PAGES[path.as_posix()]}.md{anchor})"
        if path.is_relative_to(inside) and path.suffix in (".md", ".rst"):
            return f"[{label}]({up}{path.relative_to(inside).as_posix()}{anchor})"
        return label

    parts, at = [], 0
    for fence in FENCED.finditer(text):
        parts += [LINK.sub(link, text[at : fence.start()]), fence.group()]
        at = fence.end()
    return "".join(parts) + LINK.sub(link, text[at:])


def one_title(text):
    """Pages that have several titles, as parts, get one; what follows it goes a level down."""
    pieces = re.split(r"(^`{3,}.*?^`{3,})", text, flags=re.S | re.M)
    prose = "".join(pieces[::2])
    if len(re.findall("^# ", prose, re.M)) < 2:
        return text
    first = re.search("^# ", pieces[0], re.M).end()
    head, pieces[0] = pieces[0][:first], pieces[0][first:]
    pieces[::2] = [re.sub("^#", "##", piece, flags=re.M) for piece in pieces[::2]]
    return head + "".join(pieces)


def on_source(app, docname, content):
    page = Path("docs") / f"{docname}.md"
    if not (ROOT / page).exists():
        return
    drawn = re.fullmatch(r"<!-- the text of (\S+) -->\s*", content[0])
    if drawn:
        source = Path(drawn[1])
        app.env.note_dependency(str(ROOT / source))
        content[0] = rewritten((ROOT / source).read_text(), source, page)
    else:
        content[0] = rewritten(content[0], page, page)
    content[0] = one_title(content[0])
    if docname.startswith("lab/"):  # notes of the workshop, to which links lead and no menu
        content[0] = "---\norphan: true\n---\n" + content[0]


def setup(app):
    app.connect("source-read", on_source)
    return {"parallel_read_safe": True}
