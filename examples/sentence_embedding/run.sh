#!/bin/sh
# Runs the example against a built tree: examples/sentence_embedding/run.sh BUILD_DIR [options of embed.py]
# Needs Python 3.11 or later with venv; packages go into a virtual environment under BUILD_DIR, once. PYTHON chooses the interpreter.
set -eu

if [ $# -lt 1 ] || [ ! -d "$1" ]; then
    echo "usage: $0 BUILD_DIR [options of embed.py]" >&2
    exit 2
fi
build=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
room=$build/sentence_embedding
library=$build/src/libflashattn.so.0
if [ ! -e "$library" ]; then
    echo "$0: $library is not there: build the library first" >&2
    exit 2
fi

# The list is copied last, so an installation that was cut short is done again.
if ! cmp -s "$here/requirements.txt" "$room/installed.txt"; then
    rm -rf "$room/venv"
    "${PYTHON:-python3}" -m venv "$room/venv"
    "$room/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.txt"
    cp "$here/requirements.txt" "$room/installed.txt"
fi

FLASHATTN_LIBRARY=$library PYTHONPATH=$here/../../bindings/python PYTHONDONTWRITEBYTECODE=1 \
    exec "$room/venv/bin/python" "$here/embed.py" --picture "$room/similarity.png" "$@"
