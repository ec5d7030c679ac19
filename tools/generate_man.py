#!/usr/bin/env python3
"""Writes the manual pages of section 3 from the comments of include/*.h: one for each function and struct, those that share a comment on
one page with a page for each name that leads there; flashattn_constants(3) and flashattn_cp_constants(3); and an overview for each header.

generate_man.py FOLDER
"""
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import header_manual

ROOT = Path(__file__).resolve().parent.parent
LINE = 78


@dataclass
class Book:
    """A header and its library."""

    name: str  # of the overview
    library: str
    what: str
    last_error: str  # the function that has a call's sentence, if any
    see: list[str]
    has_constants: bool = True

    @property
    def header(self):
        return ROOT / "include" / f"{self.name}.h"

    @property
    def constants(self):
        return f"{self.name if self.has_constants else 'flashattn_cp'}_constants"


BOOKS = [
    Book("flashattn", "libflashattn", "FlashAttention as a C library", "fa_last_error", ["flashattn_cp", "flashattn(1)"]),
    Book("flashattn_cp", "libflashattn-cp", "FlashAttention over several processes", "fa_cp_last_error",
         ["flashattn", "flashattn_cp_mpi", "flashattn_cp_nccl"]),
    Book("flashattn_cp_mpi", "libflashattn-cp", "FlashAttention over MPI", "", ["flashattn_cp"], has_constants=False),
    Book("flashattn_cp_nccl", "libflashattn-cp", "FlashAttention over NCCL or RCCL", "", ["flashattn_cp"], has_constants=False),
]


def roff(text):
    """Backslashes and what is not ASCII as escapes."""
    return "".join(c if ord(c) < 128 and c != "\\" else "\\e" if c == "\\" else f"\\[u{ord(c):04X}]" for c in text)


def line_safe(line):
    return "\\&" + line if line[:1] in (".", "'") else line


def prose(text):
    """A line for each sentence, or more, none longer than a terminal is wide."""
    text = re.sub(r"\*(\w+)\*|`([^`]+)`", lambda m: m[1] or m[2], re.sub(r"\s+", " ", text)).strip()
    for sentence in re.split(r"(?<=[.!?])\s+|(?<=[.!?][)\"'])\s+", text):
        line = ""
        for word in sentence.split():
            function = re.fullmatch(r"(\w+)\(\)([.,;:]?)", word)
            if function:
                if line:
                    yield line_safe(line)
                yield f".Fn {function[1]} {function[2]}".rstrip()
                line = ""
                continue
            word = roff(word)
            if line and len(line) + 1 + len(word) > LINE:
                yield line_safe(line)
                line = ""
            line = f"{line} {word}" if line else word
        if line:
            yield line_safe(line)


def quoted(argument):
    return f'"{argument}"' if " " in argument else argument


def code(text):
    return [".Bd -literal -offset indent", *(line_safe(roff(line)) or "\\&" for line in text.splitlines()), ".Ed"]


def paragraphs(doc):
    """The blocks of a comment; .Pp only where mdoc wants one: not at a section's begin, nor beside a display or a list."""
    out, in_list = [], False
    for block in header_manual.blocks(doc):
        if in_list and block.kind != "term":
            out.append(".El")
            in_list = False
        if block.kind == "text":
            out += [".Pp"] * bool(out) + list(prose(block.text))
        elif block.kind == "term":
            if not in_list:
                out.append(".Bl -tag -width Ds")
                in_list = True
            out += [f".It Ev {block.term}", *prose(block.text)]
        else:
            if block.kind == "example":
                out += [".Pp"] * bool(out) + list(prose(f"Example, {block.term}:"))
            out += code(block.text)
    return out + [".El"] * in_list


def synopsis(declaration):
    head, _, arguments = declaration.text.rstrip(")").partition("(")
    result, _, name = head.rpartition(" ")
    arguments = [] if arguments == "void" else re.split(r", (?![^(]*\))", arguments)
    arguments = [roff(re.sub(r"\* (\w+)$", r" *\1", a.replace("* ", " *"))) for a in arguments]
    return [
        f".Ft {quoted(re.sub(r'(?<! )[*]', ' *', result))}",
        f".Fo {name}",
        *(f".Fa {quoted(a)}" for a in arguments or ["void"]),
        ".Fc",
    ]


def fields(struct):
    out = [".Pp", "The fields of", f".Vt {struct.name} :", ".Bl -tag -width Ds"]
    for m in struct.members:
        if not m.name:
            out += [".El", ".Pp", *prose(m.doc), ".Bl -tag -width Ds"]
            continue
        kind, _, rest = m.declaration.rpartition(" ") if "(" not in m.declaration else (m.declaration, "", m.name)
        out += [f".It Vt {quoted(kind)} Va {rest}", *prose(m.doc)]
    text = "\n".join(out + [".El"])
    return text.replace(".Bl -tag -width Ds\n.El\n", "").split("\n")


def constants(enum, remark):
    members = [m for m in enum if m.name]
    if not members:
        return []
    out = [*prose(remark)] + [".Bl -tag -width Ds"]
    for m in enum:
        if not m.name:
            out += [".El", ".Pp", *prose(m.doc[:1].upper() + m.doc[1:] + ":"), ".Bl -tag -width Ds"]
        else:
            value = m.declaration.partition(" = ")[2]
            out += [f".It Dv {m.name} No = {roff(value)}", *prose(m.doc)]
    return "\n".join(out + [".El"]).replace(".Bl -tag -width Ds\n.El\n.Pp\n", "").split("\n")


def page(book, name, names, what, body, see):
    out = [f".Dd {DATE}", f".Dt {name.upper()} 3", ".Os", ".Sh NAME"]
    out += [f".Nm {n} ," for n in names[:-1]] + [
        f".Nm {names[-1]}",
        f".Nd {roff(what)}",
        ".Sh LIBRARY",
        book.what,
        f".Pq {book.library}, \\-l{book.library[len('lib'):]}".replace("n-cp", "n\\-cp"),
        *body,
    ]
    see = sorted(set(see) - set(names))
    out += [".Sh SEE ALSO"] + [
        f".Xr {n} {3 if n != 'flashattn(1)' else 1}" + " ," * (at < len(see) - 1) for at, n in enumerate(see)
    ]
    return "\n".join(out) + "\n"


def what_of(section, topic):
    """The first clause of the comment, where that fits a line."""
    clause = re.split(r"[.:;?(]", re.sub(r"\s+", " ", topic.doc))[0].strip()
    return clause[0].lower() + clause[1:] if 0 < len(clause) <= 70 else f"{section.title} of FlashAttention"


def topic_page(book, section, topic):
    """(names, text) of a page; None where a topic has constants alone."""
    functions, structs, kinds = topic.of("function"), topic.of("struct"), topic.of("type")
    inits = [d.name for d in functions if d.name.endswith("_init")]
    names = [d.name for d in functions if d.name not in inits] + [d.name for d in structs + kinds] + inits
    if not names:
        return None
    body = [".Sh SYNOPSIS", f".In {book.name}.h"]
    for d in kinds:
        body += [".Bd -literal", roff(f"typedef {d.text};"), ".Ed"] if "(" in d.text else [f".Vt typedef {d.text} ;"]
    for d in functions:
        body += synopsis(d)
    for d in structs:
        body += [f".Vt {d.name} ;"]
    text = paragraphs(topic.doc)
    for d in structs:
        text += fields(d) if text else fields(d)[1:]
    body += [".Sh DESCRIPTION", *(text or ["This is part of", f".Xr {book.name} 3 ."])]
    if any(d.text.startswith("fa_status_t") for d in functions):
        sentence = ["or the status of what went wrong;", f".Xr {book.last_error} 3", "has the sentence."]
        body += [
            ".Sh RETURN VALUES",
            ".Dv FA_OK ,",
            *(sentence if book.last_error else ["or the status of what went wrong."]),
            "Statuses are listed in",
            ".Xr flashattn_constants 3 .",
        ]
    neighbours = [d.name for t in section.topics for d in t.of("function", "struct") if not d.name.endswith("_init")]
    return names, page(book, names[0], names, what_of(section, topic), body, [book.name, book.constants, *neighbours])


def constants_page(book, manual):
    body = [".Sh SYNOPSIS", f".In {book.name}.h", ".Sh DESCRIPTION"]
    for section in manual.sections:
        text = []
        for topic in section.topics:
            macros = [
                header_manual.Member(d.name, f"{d.name} = {d.text}", d.doc)
                for d in topic.of("macro")
                if not d.name.endswith("_INIT")
            ]
            for d in topic.of("enum"):
                text += (
                    ([".Pp"] if text else []) + (paragraphs(topic.doc) + [".Pp"] if topic.doc else []) + constants(d.members, d.doc)
                )
            if macros:
                text += ([".Pp"] if text else []) + (paragraphs(topic.doc) if topic.doc else []) + constants(macros, "")
        if text:
            body += [f".Ss {section.title[0].upper() + section.title[1:]}", *text]
    text = "\n".join(body)
    text = text.replace(".Pp\n.Bl", ".Bl").replace(".El\n.Pp\n.Pp\n", ".El\n.Pp\n")
    return page(book, book.constants, [book.constants], f"constants of {book.name}.h", text.split("\n"), [book.name])


def overview_page(book, manual):
    body = [".Sh SYNOPSIS", f".In {book.name}.h", ".Sh DESCRIPTION", *paragraphs(manual.overview), ".Sh FUNCTIONS"]
    see = [book.constants, *book.see]
    for section in manual.sections:
        names = [d.name for t in section.topics for d in t.of("function") if not d.name.endswith("_init")]
        if names:
            body += [f".Ss {section.title[0].upper() + section.title[1:]}"]
            body += [f".Xr {n} 3" + " ," * (at < len(names) - 1) for at, n in enumerate(names)]
    return page(book, book.name, [book.name], book.what, body, see).replace("flashattn(1) ", "flashattn ")


DATE = re.search(r"^\.Dd (.+)$", (ROOT / "docs" / "flashattn.1").read_text(), re.M)[1]


def main(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.3"):
        old.unlink()
    for book in BOOKS:
        manual = header_manual.read(book.header)
        (folder / f"{book.name}.3").write_text(overview_page(book, manual))
        if book.has_constants:
            (folder / f"{book.constants}.3").write_text(constants_page(book, manual))
        for section in manual.sections:
            for topic in section.topics:
                made = topic_page(book, section, topic)
                if made:
                    names, text = made
                    (folder / f"{names[0]}.3").write_text(text)
                    for name in names[1:]:
                        (folder / f"{name}.3").write_text(f".so man3/{names[0]}.3\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
