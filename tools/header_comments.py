"""The comments of include/flashattn.h, by what they explain: bindings carry them into their own documentation."""
import re

BLOCK = re.compile(r"/\*(.*?)\*/", re.S)
STRUCT = re.compile(r"(?:(/\*(?:(?!\*/).)*\*/)\n)?typedef struct (fa_\w+)_s \{\n(.*?)\n\} \2_t;", re.S)
FIELD = re.compile(r" {4}[\w ]+?[ *]+(\w+)(?:\[\d+\])?;(?: *(/\*.*?\*/))?|^ {4}(/\*.*?\*/)", re.S | re.M)
FUNCTION = re.compile(r"(?:(/\*(?:(?!\*/).)*\*/)\n)?FA_API [^;]*?\b(fa_\w+)\(", re.S)
CONSTANT = re.compile(r"(FA_[A-Z0-9_]+)(?: = [^,/\n]*,?| [0-9][0-9a-fx]*ull) *(?:(/\*.*?\*/))?", re.S)


def plain(comment):
    """Its lines without the marks; what a line is indented by beyond the others stays, for that is how the header shows formulas."""
    if not comment:
        return []
    lines = BLOCK.fullmatch(comment.strip()).group(1).split("\n")
    rest = [re.sub(r"^ \*(?: |$)", "", line) if re.match(r"^ \*(?: |$)", line) else line.strip() for line in lines[1:]]
    return [line.rstrip() for line in (lines[0].strip(), *rest)]


def of_header(text):
    """name: lines; a field's name is struct.field. A comment on a line of its own is about the field below it."""
    found = {}
    for comment, name, body in STRUCT.findall(text):
        found[name + "_t"] = plain(comment)
        above = []
        for field, after, alone in FIELD.findall(body):
            if alone:
                above = plain(alone)
            else:
                found[f"{name}_t.{field}"] = above + plain(after)
                above = []
    for comment, name in FUNCTION.findall(text):
        found[name] = plain(comment)
    for name, comment in CONSTANT.findall(text):
        found.setdefault(name, plain(comment))
    return found
