"""What is measured, from bench/results when the site is built: a page's tables, behind the markers of bench/compare/tables.py, and its
pictures, which bench/publish.py draws:

    <!-- picture NAME | WHAT IT SHOWS -->
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import publish  # noqa: E402

PICTURE = re.compile(r"<!-- picture (\w+) \| (.*) -->")


def draw_pictures(app):
    publish.draw_pictures(Path(app.doctreedir) / "pictures")


def on_source(app, docname, content):
    page = Path(app.srcdir) / docname
    folder = Path(os.path.relpath(Path(app.doctreedir) / "pictures", page.parent)).as_posix()
    text = publish.tables.rewritten(content[0], publish.RESULTS)
    content[0] = PICTURE.sub(rf"![\2]({folder}/\1.svg)", text)


def setup(app):
    app.connect("builder-inited", draw_pictures)
    app.connect("source-read", on_source, priority=400)  # before links are looked at
    return {"parallel_read_safe": True}
