# module.sh NM READELF MODULE: it exports one function, and asks the loader for nothing but the C library.
. "$(dirname "$0")/common.sh"

nm=$1 readelf=$2 module=$3
exported=$("$nm" -D --defined-only "$module" | awk '{print $2, $3}')
[ "$exported" = "T flashattn_backend_v1" ] || { echo "FAILED: the module exports: $exported" >&2; exit 1; }
dynamic=$("$readelf" -d "$module")
others=$(grep NEEDED <<<"$dynamic" | grep -vE '\[(libc|libm|libdl|librt|libpthread|ld-linux.*)\.so\.[0-9]\]' || true)
[ -z "$others" ] || { echo "FAILED: the module needs more than the C library: $others" >&2; exit 1; }
! grep -E 'RPATH|RUNPATH|TEXTREL' <<<"$dynamic"
