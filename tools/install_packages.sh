#!/usr/bin/env bash
# install_packages.sh PACKAGE…: installs the Debian packages that are missing; silent when none is.
set -euo pipefail

missing=()
for package; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "No apt-get here. Please install what Debian calls: ${missing[*]}" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "Please install as root: apt-get install ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
echo "== Installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for step in "update" "install -y --no-install-recommends ${missing[*]}"; do
    # shellcheck disable=SC2086
    "${as_root[@]}" apt-get $step >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
done
