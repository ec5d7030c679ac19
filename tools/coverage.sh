#!/usr/bin/env bash
# Line and branch coverage of the driver and the specification by the tests, into build/coverage/report.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/install_packages.sh g++ cmake ninja-build libgtest-dev libcli11-dev nlohmann-json3-dev python3-numpy gcovr

build=build/coverage
flags="--coverage -fprofile-update=atomic"
cmake -G Ninja -B $build -S . -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags -O1" --log-level=WARNING >/dev/null
cmake --build $build -- --quiet
find $build -name '*.gcda' -delete
OMP_WAIT_POLICY=passive ctest --test-dir $build --output-on-failure --progress -j "$(nproc)" -LE installed

mkdir -p $build/report
gcovr --root . --filter src/core/ --filter src/spec/ --exclude-throw-branches --exclude-unreachable-branches \
    --html-details $build/report/index.html --txt $build/report/summary.txt --print-summary $build
cat $build/report/summary.txt
