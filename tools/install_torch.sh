#!/usr/bin/env bash
# install_torch.sh: prints a folder with Debian's torch for the CPU and the libraries that it needs, 150 MB to fetch, unpacked under
# build/torch: no root is needed, and no other Python finds it, for it is older than flashattn.torch takes. It has torch.distributed with
# gloo, for which PyPI's torch would need gigabytes of NVIDIA's libraries. Prints nothing but a sentence on stderr where Debian's packages
# cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/build/torch
if [ ! -e "$folder/complete" ]; then
    echo "== Fetching torch (build/torch)" >&2
    rm -rf "$folder"
    mkdir -p "$folder/packages"
    cd "$folder/packages"
    packages=$(apt-get install --simulate --no-install-recommends python3-torch 2>/dev/null | awk '/^Inst/ {print $2}') || packages=
    # shellcheck disable=SC2086
    if [ -z "$packages" ] || ! apt-get download -qq $packages >fetched 2>&1; then
        echo "torch is left out: apt-get cannot fetch Debian's python3-torch" >&2
        exit 0
    fi
    for package in *.deb; do dpkg --extract "$package" "$folder"; done
    rm -rf "$folder/packages"
    touch "$folder/complete"
fi
echo "$folder"
