"""Reads include/flashattn.h as the manual that it is: sections, what each declares, and the comment of each declaration, field and
constant.

The form it relies on is the header's own. A comment before a declaration belongs to it and to all that follow without a blank
line; a comment behind a field or a constant belongs to that one; a line of dashes begins a section. Of a header of inline functions, what
stands before its first line of dashes is its own affair.
"""

import re
from dataclasses import dataclass, field
from os.path import commonprefix

TOKEN = re.compile(
    r"(?P<comment>/\*.*?\*/)|(?P<directive>#(?:[^\n\\/]|\\\n|\\|/(?!\*))*)|(?P<blank>\n[ \t]*(?=\n))|(?P<space>\s+)|(?P<code>[^;/#]+;?)",
    re.S,
)
BANNER = re.compile(r"/\* -{20,} (.+?) \*/")
INLINE = re.compile(r"^static inline (.+?\)) \{\n.*?^\}\n", re.S | re.M)
SENTENCES_END = 100  # a line of a comment that is shorter ends its paragraph, where a capital follows


@dataclass
class Member:
    """A field or a constant; without a name, a remark on those that follow."""

    name: str
    declaration: str
    doc: str


@dataclass
class Declaration:
    kind: str  # "function", "struct", "enum", "macro", "type"
    name: str  # of an enumeration ""
    text: str  # one line of C, without FA_API
    doc: str = ""  # behind it
    members: list[Member] = field(default_factory=list)


@dataclass
class Topic:
    doc: str
    declarations: list[Declaration] = field(default_factory=list)

    def of(self, *kinds):
        return [d for d in self.declarations if d.kind in kinds]

    @property
    def title(self):
        chief = [d.name for d in self.of("function") if not d.name.endswith("_init")] or [d.name for d in self.of("struct", "type")]
        if chief:
            return ", ".join(chief)
        constants = [m.name for d in self.of("enum") for m in d.members if m.name] or [d.name for d in self.of("macro")]
        if len(constants) == 1:
            return constants[0]
        prefix = re.sub("[^_]*$", "", commonprefix(constants))
        return f"{prefix}…" if prefix != "FA_" else f"{constants[0]} … {constants[-1]}"


@dataclass
class Section:
    title: str
    topics: list[Topic] = field(default_factory=list)


@dataclass
class Manual:
    overview: str
    sections: list[Section]

    def declarations(self):
        return [d for s in self.sections for t in s.topics for d in t.declarations]

    def comments(self):
        """{name: lines}; a field's name is struct.field. A comment before several declarations is the first one's, a remark is the
        next field's."""
        found = {}
        for topic in (t for s in self.sections for t in s.topics):
            for d in topic.declarations:
                above = topic.doc if d is topic.declarations[0] else ""
                if d.name:
                    found[d.name] = (above + "\n" + d.doc).strip().splitlines()
                remark = ""
                for member in d.members:
                    if not member.name:
                        remark = member.doc if d.kind == "struct" else ""
                        continue
                    name = f"{d.name}.{member.name}" if d.kind == "struct" else member.name
                    found[name] = (remark + "\n" + member.doc).strip().splitlines()
                    remark = ""
        return found


def comment_text(comment):
    """Without the stars; what is indented stays so."""
    lines = comment[2:-2].strip("\n").splitlines()
    first = lines[0].strip()
    rest = [re.sub(r"^\s*\* ?", "", line) if re.match(r"\s*\*", line) else line.strip() for line in lines[1:]]
    return "\n".join([first, *(line.rstrip() for line in rest)]).strip()


def one_line(code):
    code = re.sub(r"\s+", " ", code).strip().rstrip(";").removeprefix("FA_API ")
    return code.strip()


def field_name(declaration):
    return re.search(r"\(\*(\w+)\)|(\w+)(\[\d+\])?$", declaration).expand(r"\1\2")


def members_of(body, separator):
    """Fields or constants, each with the comments behind it; what stands on lines of its own is a remark on the next ones."""
    found, pieces = [], re.split(r"(/\*.*?\*/)", body, flags=re.S)
    behind = None  # the member whose line is not over
    for piece in pieces:
        if piece.startswith("/*"):
            if behind is not None:
                behind.doc = f"{behind.doc} {comment_text(piece)}".strip()
            else:
                found.append(Member("", "", comment_text(piece)))
            continue
        for at, code in enumerate(piece.split(separator)):
            if at and "\n" in code:
                behind = None
            if code.strip():
                text = one_line(code)
                name = text.partition(" =")[0] if separator == "," else field_name(text)
                behind = Member(name, text, "")
                found.append(behind)
        if "\n" in piece[len(piece.rstrip()) :]:
            behind = None
    return found


def declaration(code):
    """One that ends with a semicolon; None for what declares nothing by a name."""
    plain = re.sub(r"/\*.*?\*/", "", code, flags=re.S)
    enum, struct = re.match(r"\s*enum\s*\{(.*)\}", code, re.S), re.match(r"\s*typedef struct \w+ \{(.*)\} (\w+);", code, re.S)
    if enum:
        title = re.match(r"[^\n]*?(/\*.*?\*/)", enum[1], re.S)
        body = enum[1][title.end() :] if title else enum[1]
        return Declaration("enum", "", "enum", comment_text(title[1]) if title else "", members_of(body, ","))
    if struct:
        return Declaration("struct", struct[2], f"struct {struct[2]}", "", members_of(struct[1], ";"))
    text = one_line(plain)
    if text.startswith("typedef"):
        name = re.search(r"\(\*(\w+)\)|(\w+)$", text)
        return Declaration("type", name[1] or name[2], text.removeprefix("typedef "))
    function = re.search(r"(\w+)\(", text)
    return Declaration("function", function[1], text) if function else None


def tokens(text):
    """(kind, text, whether it begins a line) with whole declarations put together."""
    code, at = "", 0
    while at < len(text):
        found = TOKEN.match(text, at) or re.compile(".", re.S).match(text, at)
        kind, piece, begins = found.lastgroup or "code", found.group(), text.rfind("\n", 0, at) == at - 1
        at = found.end()
        if code or kind == "code":
            code += piece
            if code.count("{") == code.count("}") and code.rstrip().endswith(";") and kind == "code":
                yield "code", code, begins
                code = ""
        else:
            yield kind, piece, begins


def begin(manual, doc):
    if not manual.sections:  # what stands before the first line of dashes
        manual.sections.append(Section("version"))
    manual.sections[-1].topics.append(Topic(doc))
    return manual.sections[-1].topics[-1]


def read(path):
    text = path.read_text()
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", text, flags=re.S)
    overview, _, text = text.partition("*/")
    if INLINE.search(text):
        text = INLINE.sub(r"\1;\n", text[BANNER.search(text).start() :])
    manual, topic, last = Manual(comment_text(overview + "*/"), []), None, None
    for kind, piece, begins in tokens(text):
        if kind == "comment" and BANNER.fullmatch(piece):
            manual.sections.append(Section(BANNER.fullmatch(piece)[1]))
            topic = None
        elif kind == "blank":
            topic = last = None
        elif kind == "comment" and last is not None and not begins:
            last.doc = comment_text(piece)
        elif kind == "comment":
            topic = begin(manual, comment_text(piece))
        elif kind in ("directive", "code"):
            macro = re.match(r"#define (FA_(?!API\b|STATIC\b)\w+)\s+(.*)", piece, re.S)
            last = (
                Declaration("macro", macro[1], re.sub(r"\\\n\s*", "", macro[2]).strip())
                if macro
                else declaration(piece) if kind == "code" else None
            )
            if last is None:
                continue
            if topic is None and last.name.endswith("_INIT"):
                topic = manual.sections[-1].topics[-1]  # its struct's
            if topic is None or (last.kind == "enum" and topic.declarations):
                topic = begin(manual, "")
            topic.declarations.append(last)
    for section in manual.sections:
        section.topics = [t for t in section.topics if t.declarations]
    return manual


# ---------------------------------------------------------------------------------------------------------------- paragraphs


@dataclass
class Block:
    kind: str  # "text", "code", "term" with its meaning, "example": a term with its code
    text: str
    term: str = ""


def blocks(doc):
    """The paragraphs of a comment, its indented code, and its lists of terms."""
    found = []

    def is_new(line, before, kind):
        return not found or found[-1].kind != kind or before is None or (len(before) < SENTENCES_END and line[:1].isupper())

    before = None
    for line in doc.splitlines():
        indent, bare = len(line) - len(line.lstrip()), line.strip()
        term, example = re.match(r"(\S+)  +(\S.*)", bare), re.match(r"Example, (.+?): +(\S.*)", bare)
        if not bare:
            if found and found[-1].kind == "code":
                found[-1].text += "\n"
            before = None
            continue
        if indent == 2 and term:
            found.append(Block("term", term[2], term[1]))
        elif example:
            found.append(Block("example", example[2], example[1]))
        elif indent >= 20 and found and found[-1].kind == "example":
            found[-1].text += "\n" + bare
        elif indent >= 2 and found and found[-1].kind == "term" and before is not None:
            found[-1].text += " " + bare
        elif indent >= 4:
            if found and found[-1].kind == "code" and before is not None:
                found[-1].text += "\n" + line[4:]
            else:
                found.append(Block("code", line[4:]))
        elif is_new(bare, before, "text"):
            found.append(Block("text", bare))
        else:
            found[-1].text += " " + bare
        before = line
    for block in found:
        block.text = block.text.strip("\n")
    return found
