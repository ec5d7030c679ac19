"""The manual pages of section 3: mandoc finds nothing to say of any, and every function and struct has one.

manual_pages.py ROOT MANDOC
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ELSEWHERE = "referenced manual not found: Xr flashattn 1"  # mandoc looks beside the page, and among those installed here


def main(root, mandoc):
    sys.path.insert(0, str(Path(root) / "tools"))
    import generate_man
    import header_manual

    faults = []
    with tempfile.TemporaryDirectory() as folder:
        generate_man.main(folder)
        pages = sorted(Path(folder).glob("*.3"))
        names = {page.stem for page in pages}
        for page in pages:
            text = page.read_text()
            if text.startswith(".so "):
                target = text.split()[1].removeprefix("man3/").removesuffix(".3")
                if target not in names or f".Nm {page.stem}" not in (page.parent / f"{target}.3").read_text():
                    faults.append(f"{page.name} leads to {target}, which does not name it")
                continue
            said = subprocess.run([mandoc, "-Tlint", "-Wstyle", page.name], cwd=folder, capture_output=True, text=True).stdout
            faults += [line for line in said.splitlines() if ELSEWHERE not in line]
        declared = [d for book in generate_man.BOOKS for d in header_manual.read(book.header).declarations()]
        wanted = {d.name for d in declared if d.kind in ("function", "struct", "type")}
        faults += [f"{name} has no page" for name in sorted(wanted - names)]
    print("\n".join(faults) or f"{len(pages)} pages")
    return 1 if faults or not pages else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
