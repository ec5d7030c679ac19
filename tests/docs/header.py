"""The reference's reading of flashattn.h has every name that a compiler finds in it: functions, structs with their fields in
order, constants with their values. And what it says of them are the header's comments, to the word, each section on a page.

header.py ROOT
"""

import re
import shutil
import sys
from pathlib import Path

PUT = re.compile(r"^\.\. header:: (.+)\n(?: +:of: (\S+)\n)?", re.M)  # a section of a header on a page of the reference


def words(text):
    return re.sub(r"[^\w]+", " ", text).split()


def main(root):
    root = Path(root)
    sys.path.insert(0, str(root / "tools"))
    import generate_abi
    import header_manual

    header = root / "include" / "flashattn.h"
    manual = header_manual.read(header)
    clang = next(filter(shutil.which, generate_abi.CLANGS), None)
    faults = []
    functions = [d.name for d in manual.declarations() if d.kind == "function"]
    structs = {d.name: [m.name for m in d.members if m.name] for d in manual.declarations() if d.kind == "struct"}
    constants = {m.name for d in manual.declarations() if d.kind == "enum" for m in d.members if m.name}
    constants |= {d.name for d in manual.declarations() if d.kind == "macro" and not d.name.endswith("_INIT")}
    if clang:
        abi = generate_abi.read_header(clang, header)
        if sorted(functions) != sorted(abi.functions):
            faults.append(f"functions: {set(functions) ^ set(abi.functions)}")
        if structs != {name: [field for field, _ in fields] for name, fields in abi.structs.items()}:
            faults.append("structs or their fields differ from the compiler's")
        compiled = {c.name for group in abi.constants for c in group}
        if constants != compiled:
            faults.append(f"constants: {constants ^ compiled}")

    read = [
        manual.overview,
        *(s.title for s in manual.sections[1:]),
    ]  # what stands before the first line of dashes has no title there
    for section in manual.sections:
        for topic in section.topics:
            read += [topic.doc, *(d.doc for d in topic.declarations), *(m.doc for d in topic.declarations for m in d.members)]
            shown = " ".join(block.term + " " + block.text for block in header_manual.blocks(topic.doc))
            if words(shown) != words(topic.doc.replace("Example,", "")):
                faults.append(f"{topic.title}: the paragraphs lose words of the comment")
    comments = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", header.read_text(), flags=re.S)
    comments = [header_manual.comment_text(c) for c in re.findall(r"/\*.*?\*/", comments, re.S)]
    lost = sorted(words(" ".join(comments))) != sorted(words(" ".join(read)))
    if lost:
        faults.append(
            f"comments are lost or doubled: {sum(len(words(c)) for c in comments)} words, read {sum(len(words(c)) for c in read)}"
        )
    pages = "".join(page.read_text() for page in sorted((root / "docs/reference").glob("*.rst")))
    put = sorted((of or header.name, title) for title, of in PUT.findall(pages))
    files = sorted(header.parent.glob("*.h"))
    wanted = sorted((file.name, title) for file in files for title in ["overview", *(s.title for s in header_manual.read(file).sections)])
    if put != wanted:
        faults.append(f"sections that are not on one page of docs/reference: {sorted(set(put) ^ set(wanted)) or put}")
    print(
        "\n".join(faults)
        or f"{len(functions)} functions, {len(structs)} structs, {len(constants)} constants{'' if clang else '; no clang'}"
    )
    return 1 if faults or not functions else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
