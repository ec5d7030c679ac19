#!/bin/sh
# What a program sees of a library, as libabigail reads it from the debugging information of its code (of libflashattn: the core's), against
# the dump of the version in tests/abi: whatever is gone or has changed is a fault, structs that grew included. For these, which
# abi.Generated allows, a new version gets a dump of its own. Then a field changes its type, and that must be noticed.
#   abi_diff.sh CXX ROOT DUMP             DUMP is named after the library: libflashattn.abi.gz or libflashattn-cp.abi.gz
#   abi_diff.sh --write CXX ROOT DUMP     writes the dump
# Dumps are compressed, since nobody reads them, and a line of them is no unit of change.
set -eu
write=
[ "$1" != --write ] || { write=1; shift; }
cxx=$1 root=$2 dump=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
library=$(basename "$dump" .abi.gz)
case $library in
    libflashattn) sources=$(ls "$root"/src/core/*.cc) map=core/flashattn.map header=flashattn.h field=parts ;;
    libflashattn-cp) sources=$(grep -l "^fa_status_t fa_cp_" "$root"/src/cp/*.cc) map=cp/flashattn-cp.map header=flashattn_cp.h field=timeout_ms ;;
    *) echo "$dump: of which library?" && exit 2 ;;
esac
for source in $sources; do echo "#include \"$source\""; done >"$folder/all.cc"

# dump_of INCLUDE FILE: these sources alone; what they call elsewhere stays undefined.
dump_of() {
    (cd "$folder" && "$cxx" -std=c++17 -w -g -O0 -fPIC -fvisibility=hidden -DFA_BACKEND_DIR='""' -I"$1" -I"$root/src" -shared -Wl,-z,undefs \
        -Wl,-soname,$library.so.0 -Wl,--version-script="$root/src/$map" all.cc -o all.so)
    abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --drop-private-types --headers-dir "$1" --out-file "$2" "$folder/all.so"
}
dump_of "$root/include" "$folder/now.abi"
if [ -n "$write" ]; then gzip -9n <"$folder/now.abi" >"$dump"; exit; fi
gzip -dc "$dump" >"$folder/frozen.abi"
abidiff --no-added-syms "$folder/frozen.abi" "$folder/now.abi"

cp -r "$root/include" "$folder/include"
sed -i "s/^    int64_t $field; /    uint64_t $field; /" "$folder/include/$header"
dump_of "$folder/include" "$folder/changed.abi"
! abidiff "$folder/frozen.abi" "$folder/changed.abi" >"$folder/log" || { echo "a field that changed its type was not noticed"; exit 1; }
grep -q "type of 'int64_t $field' changed" "$folder/log"
