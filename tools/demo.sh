#!/usr/bin/env bash
# The whole way on a bare Debian 12: installs what is missing, builds, and puts the library to work.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

SECONDS=0
tools/install_packages.sh g++ cmake ninja-build pkg-config libcli11-dev nlohmann-json3-dev python3-venv

step "Building (build/release)"
cmake --preset release -DFA_TESTS=OFF --log-level=WARNING >/dev/null
cmake --build --preset release -- --quiet
prefix=$PWD/build/installed
cmake --install build/release --prefix "$prefix" >/dev/null

step "Which backends are usable here"
"$prefix/bin/flashattn" info

step "Every kernel against the fp64 oracle"
"$prefix/bin/flashattn" verify

step "The classic exercise, by the tool and by examples/solve.c"
cat examples/exercise.txt
echo "->"
"$prefix/bin/flashattn" solve examples/exercise.txt
# The prefix is no system folder: pkg-config and the loader are told where it is.
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name flashattn.pc)") && export PKG_CONFIG_PATH
LD_LIBRARY_PATH=$(pkg-config --variable=libdir flashattn) && export LD_LIBRARY_PATH
for example in solve minimal; do
    # shellcheck disable=SC2046
    cc "examples/$example.c" -o "build/$example" $(pkg-config --cflags --libs flashattn)
done
build/solve

step "examples/minimal.c"
build/minimal

step "Sentence embeddings by a real model, all its attention through the library"
examples/sentence_embedding/run.sh build/release

step "All of it worked, in $SECONDS seconds"
