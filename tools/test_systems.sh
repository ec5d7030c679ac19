#!/usr/bin/env bash
# Builds the library for Windows (x86-64, MinGW's GCC), links examples with its DLL, and runs them under Wine. Each checks its own result.
#   test_systems.sh
set -euo pipefail
cd "$(dirname "$0")/.."

tools/install_packages.sh g++-mingw-w64-x86-64-posix wine64 cmake ninja-build
build=build/windows
printf '\n== Building for Windows\n'
cmake -G Ninja -B $build -DCMAKE_TOOLCHAIN_FILE=cmake/windows.cmake -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
    -DFA_TESTS=OFF -DFA_CLI=OFF -DFA_CP=OFF --log-level=WARNING >/dev/null
cmake --build $build --target flashattn -- --quiet

printf '\n== Running under Wine\n'
mkdir -p $build/run
cp $build/src/libflashattn-0.dll $build/run
wine=$(command -v wine64 || echo /usr/lib/wine/wine64)
export WINEPREFIX=$PWD/$build/run/prefix WINEDEBUG=-all
for example in minimal errors backward_step quantised_cache explain thread_pool; do
    x86_64-w64-mingw32-gcc-posix -O1 -static -Iinclude examples/$example.c -o $build/run/$example.exe $build/src/libflashattn.dll.a -lm
    (cd $build/run && timeout 120 "$wine" ./$example.exe >$example.txt) || { cat $build/run/$example.txt; echo "$example fails"; exit 1; }
    echo "$example passes"
done
