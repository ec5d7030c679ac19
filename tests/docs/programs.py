"""Each program of the tutorial and the guides prints what its page quotes: the lines of every block "output" stand in its output,
in a row. A number may differ by one in its last digit, since compilers round otherwise; words may not.

programs.py DOCS PROGRAMS [training]
"""

import re
import subprocess
import sys
from pathlib import Path

QUOTED = re.compile(r"^```output\n(.*?)^```", re.S | re.M)
SHOWN = re.compile(r"^<!-- program ((?:\.\./)*(?:\w+/)*)(\w+)\.(c|py) ", re.M)
NUMBER = re.compile(r"-?\d+\.\d+")


def agree(quoted, printed):
    if NUMBER.sub("#", quoted).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(quoted), NUMBER.findall(printed))
    return all(abs(float(a) - float(b)) < 1.5 * 10.0 ** -len(a.partition(".")[2]) for a, b in pairs)


def holds(block, lines):
    wanted = block.splitlines()
    starts = range(len(lines) - len(wanted) + 1)
    return any(all(map(agree, wanted, lines[at : at + len(wanted)])) for at in starts)


def faults_of(page, docs, programs, kind):
    text = page.read_text()
    shown = {(folder, name) for folder, name, ending in SHOWN.findall(text) if ending == kind}
    if not shown:
        return
    if len(shown) > 1:
        yield f"{page.name} shows several programs: {', '.join(sorted(name for _, name in shown))}"
        return
    folder, name = shown.pop()
    command = [programs / name] if kind == "c" else [sys.executable, page.parent / folder / f"{name}.py"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        yield f"{name} exits with {ran.returncode}: {ran.stdout}{ran.stderr}"
    if kind == "c" and page.parent.name == "tutorial":
        figure = subprocess.run([*command, "figure"], capture_output=True, text=True)
        if figure.returncode or len(figure.stdout.splitlines()) < 8:
            yield f"{name} figure exits with {figure.returncode}, after {len(figure.stdout.splitlines())} lines: {figure.stderr}"
    blocks = QUOTED.findall(text)
    if not blocks:
        yield f"{page.name} quotes nothing of what {name} prints"
    for block in blocks:
        if not holds(block, ran.stdout.splitlines()):
            yield f"{page.name} quotes\n{block}but {name} prints\n{ran.stdout}"


def main(docs, programs, only=""):
    docs, programs = Path(docs), Path(programs)
    pages = sorted([*docs.glob("tutorial/*.md"), *docs.glob("guides/*.md")])
    faults = [fault for page in pages for fault in faults_of(page, docs, programs, "py" if only else "c")]
    # A comparison that nothing fails would prove nothing.
    if holds("p  0.5760\n", ["p 0.5790"]) or holds("yes\n", ["no"]) or holds("1.0\n2.0\n", ["1.0", "x", "2.0"]):
        faults.append("the comparison takes what is wrong")
    unused = {p.stem for p in docs.glob("*/*.c")} - {name for page in pages for _, name, _ in SHOWN.findall(page.read_text())}
    faults += [f"{name}.c is shown on no page" for name in sorted(unused)]
    print("\n".join(faults) or f"{len(pages)} pages")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
