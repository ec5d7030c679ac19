# Each check must find a planted fault, or its silence means nothing.
set -euo pipefail

tools=$1 cc=$2 python=$3
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

# finds WHAT COMMAND…: the command must fail and name the fault.
finds() {
    local what=$1 output
    shift
    if output=$("$@" 2>&1); then
        echo "FAILED: $* overlooks the fault" && exit 1
    fi
    grep -qF -- "$what" <<<"$output" || { echo "FAILED: $* does not name '$what': $output" && exit 1; }
}

# file NAME: writes standard input there.
file() { mkdir -p "$tree/$(dirname "$1")" && cat >"$tree/$1"; }

file include/flashattn.h </dev/null
file src/spec/mask.h </dev/null
file src/core/handle.h </dev/null
file src/cpu/tile.cc <<<'#include "spec/mask.h"'
"$tools/check_includes" "$tree" >/dev/null
file src/cpu/tile.cc <<<'#include "core/handle.h"'
finds "cpu must not include core" "$tools/check_includes" "$tree"
rm "$tree/src/cpu/tile.cc"
file src/gpu/host/plan.h </dev/null
file src/gpu/mma/cache/bytes.h <<<'#include "gpu/host/plan.h"'
finds "gpu/mma must not include gpu/host" "$tools/check_includes" "$tree"
rm -r "$tree/src/gpu"
file src/cpu/tile.cc <<<'#include <vector>'
finds "<vector>" "$tools/check_includes" "$tree"
file src/cpu/tile.cc <<<'#include <unistd.h>'
finds "<unistd.h> is of a system" "$tools/check_includes" "$tree"
file src/cpu/tile.cc <<<'#if defined(_WIN32)'
finds "_WIN32 names a system" "$tools/check_includes" "$tree"
file src/os/linux/park.cc <"$tree/src/cpu/tile.cc"
file src/cpu/tile.cc </dev/null
"$tools/check_includes" "$tree" >/dev/null
file src/cpu/isa/avx2/kernels.cc <<<'#include "cpu/tile.cc"'
finds "an instruction set's file must not include" "$tools/check_includes" "$tree"
rm -r "$tree/src/cpu"
file bindings/python/flashattn/plan.py <<<'from ._request import Request'
file bindings/python/flashattn/_request.py </dev/null
"$tools/check_includes" "$tree" >/dev/null
file bindings/python/flashattn/_request.py <<<'def f(): from . import plan'
finds "_request <- plan <- _request" "$tools/check_includes" "$tree"

rm -r "$tree/src"
file src/core/api.cc <<<'int f() { return 1; }  // abort() is not called'
"$tools/check_words" "$tree" >/dev/null
file src/core/api.cc <<<'int f() { abort(); }'
finds "abort(" "$tools/check_words" "$tree"
file src/core/api.cc <<<'const char* f() { return getenv("X"); }'
finds "getenv" "$tools/check_words" "$tree"
file src/core/api.cc <<<'const char* f() { return os::variable("X"); }'
finds "only env.cc" "$tools/check_words" "$tree"
file src/gpu/loop.h <<'END'
void f() {
    if constexpr (g(kRows) > 1) {
        FA_UNROLL_FOR (;;) h();
    }
}
END
file src/core/api.cc </dev/null
"$tools/check_words" "$tree" >/dev/null
file src/gpu/loop.h <<'END'
void f() {
    if constexpr (g(kRows) > 1)
        FA_UNROLL_FOR (;;) h();
}
END
finds "src/gpu/loop.h:2: an unrolled loop" "$tools/check_words" "$tree"
rm "$tree/src/gpu/loop.h"
printf 'int f();  // %s: later\n' "TO""DO" | file src/core/api.cc
finds "unfinished work" "$tools/check_words" "$tree"

file docs/architecture.md <<'END'
## Glossary

| not | say | meaning |
|---|---|---|
| `few`, `told twice` | decode | few rows |
END
file src/core/api.cc <<<'int fewer(int told);  // few rows; "told twice"'
"$tools/check_terms" "$tree" >/dev/null
for identifier in few_rows kFew FewRows told_twice; do
    file src/core/api.cc <<<"int $identifier;"
    finds "$identifier: the glossary" "$tools/check_terms" "$tree"
done
file src/core/few.cc </dev/null
finds "few: the glossary" "$tools/check_terms" "$tree"
rm -r "$tree/src/core" "$tree/docs"

file docs/guides/add.c <<'END'
    /* [sum] of two */
    return a + b;
    /* [end] */
END
file docs/guides/add.md <<'END'
<!-- program add.c | [sum] -->
END
finds "add.md quotes a program" "$tools/quote_programs" --check "$tree"
"$tools/quote_programs" "$tree" >/dev/null
"$tools/quote_programs" --check "$tree" >/dev/null
[ "$(tail -3 "$tree/docs/guides/add.md")" = $'```c\nreturn a + b;\n```' ] || { echo "FAILED: quoted is $(cat "$tree/docs/guides/add.md")" && exit 1; }
sed -i s/+/-/ "$tree/docs/guides/add.c"
finds "add.md quotes a program" "$tools/quote_programs" --check "$tree"
file docs/guides/add.c </dev/null
finds "nothing is found by <!-- program add.c | [sum] -->" "$tools/quote_programs" --check "$tree"
file docs/guides/add.md <<<'```{literalinclude} add.c'
finds "{literalinclude} add.c: expected a marker" "$tools/quote_programs" --check "$tree"
rm -r "$tree/docs"

for page in README.md docs/support.md docs/generated/support.tsv; do file $page <"$tools/../$page"; done
"$tools/support_tables" --check "$tree" >/dev/null
sed -i 's/| SIMT |/| wgmma |/' "$tree/docs/support.md"
finds "docs/support.md says otherwise" "$tools/support_tables" --check "$tree"
cp "$tools/../docs/support.md" "$tree/docs"
sed -i 's/^\(type | e5m2 | forward\t\)yes/\1no/' "$tree/docs/generated/support.tsv"
finds "README.md says otherwise" "$tools/support_tables" --check "$tree"
rm -r "$tree/docs" "$tree/README.md"

file include/flashattn.h <<<'FA_API fa_status_t fa_explain(fa_handle_t handle);'
file cli/info.cc <<<'fa_status_t f() { const fa_status_t s = fa_explain(h); if (fa_explain(h) != s) fail(fa_explain(h)); return s ? s : fa_explain(h); }'
"$tools/check_statuses" "$tree" >/dev/null
for call in '{ fa_explain(h); }' 'if (h) fa_explain(h);' '; (void)fa_explain(h);' 'else fa_explain(h);'; do
    file cli/info.cc <<<"$call"
    finds "cli/info.cc:1: the status of fa_explain is dropped" "$tools/check_statuses" "$tree"
done
file cli/info.cc </dev/null
file bindings/a.rs <<<'fn f() { let s = unsafe { sys::fa_explain(h) }; unsafe { sys::fa_explain(h) }; }'
finds "bindings/a.rs:1: the status of fa_explain is dropped" "$tools/check_statuses" "$tree"
file bindings/a.rs </dev/null
printf 's := C.fa_explain(h)\n\tC.fa_explain(h)\n' | file bindings/a.go
finds "bindings/a.go:2: the status of fa_explain is dropped" "$tools/check_statuses" "$tree"
file bindings/a.go </dev/null
printf 'check(\n    lib.fa_explain(h)\n)\nlib.fa_explain(h)\n' | file bindings/a.py
finds "bindings/a.py:4: the status of fa_explain is dropped" "$tools/check_statuses" "$tree"
rm -r "$tree/cli" "$tree/bindings"
file include/flashattn.h </dev/null

for size in 1 4; do
    file big.c <<<"char big[$size << 20] = {1};"
    "$cc" -shared -fPIC "$tree/big.c" -o "$tree/big$size.so"
done
"$tools/check_library_size" "$tree/big1.so" >/dev/null
finds "at most 3407872" "$tools/check_library_size" "$tree/big4.so"

cp "$tools/../.clang-format" "$tree"
file src/core/api.cc <<<'int f() { return 1; }'
status=0
"$python" "$tools/check_format" "$tree" >/dev/null || status=$?
if [ $status != 77 ]; then  # as where there is no clang-format
    [ $status = 0 ]
    file src/core/api.cc <<<'int f() {return 1;}'
    finds "src/core/api.cc:1: not as .clang-format lays it out" "$python" "$tools/check_format" "$tree"
    "$python" "$tools/check_format" --write "$tree" >/dev/null
    "$python" "$tools/check_format" "$tree" >/dev/null
fi

# object NAME: compiles standard input with $flags.
object() {
    "$cc" -x c $flags -c - -o "$tree/$1"
}
flags=-O2
mkdir -p "$tree/isa/generic"
object isa/generic/kernels.cc.o <<<'const int kKernels_generic = 1;'
"$tools/check_isa_objects" "$tree/isa/generic/kernels.cc.o" >/dev/null
object isa/generic/kernels.cc.o <<<'const int kKernels_generic = 1; int second;'
finds "expected its tables as global symbols" "$tools/check_isa_objects" "$tree/isa/generic/kernels.cc.o"
object isa/generic/kernels.cc.o <<<'const int kKernels_generic = 1; __attribute__((weak)) int merged(void) { return 1; }'
finds "weak or unique symbols: merged" "$tools/check_isa_objects" "$tree/isa/generic/kernels.cc.o"
if [ "$(uname -m)" = x86_64 ]; then
    flags="-O3 -mavx2"
    object tile.cc.o <<<'void f(float* x) { for (int i = 0; i < 64; i++) x[i] *= 2; }'
    finds "is run on every CPU" "$tools/check_isa_objects" "$tree/tile.cc.o"
fi
object tile.cc.o <<<'int f(void) { return 1; }'
printf '#!/bin/sh\necho "  0: ld1w {z0.s}, p0/z, [x0]"\n' | file objdump
chmod +x "$tree/objdump"
OBJDUMP=$tree/objdump finds "uses z0.s, but is run on every CPU" "$tools/check_isa_objects" "$tree/tile.cc.o"
printf '#!/bin/sh\necho "  0: vsetivli zero, 4, e32, m1, ta, ma"\n' | file objdump
OBJDUMP=$tree/objdump finds "uses vsetivli, but is run on every CPU" "$tools/check_isa_objects" "$tree/tile.cc.o"
object tile.cc.o <<<'int g(void) __asm__("__atomic_exchange_1"); int f(void) { return g(); }'
finds "needs libatomic: __atomic_exchange_1" "$tools/check_isa_objects" "$tree/tile.cc.o"
mkdir -p "$tree/site"
file site/index.html <<<'<p id="there"><a href="#there">a</a> <a href="other.html#named">b</a> <a href="https://example.org">c</a>'
file site/other.html <<<'<p id="named">'
"$tools/check_links" "$tree/site" >/dev/null
for fault in '<a href="gone.html">:gone.html is not there' '<a href="other.html#gone">:names nothing' '<img src="https://example.org/x.png">:fetches'; do
    file site/index.html <<<"${fault%:*}"
    finds "${fault##*:}" "$tools/check_links" "$tree/site"
done

# A new version that only the header knows: each file that speaks of it is named.
said=$(grep -oP '^    \("\K[^"]+' "$tools/check_release" | sort -u)
# shellcheck disable=SC2086
(cd "$tools/.." && cp --parents $said include/flashattn.h "$tree")
"$tools/check_release" "$tree" >/dev/null
sed -i 's/^\(#define FA_VERSION_\(MINOR\|PATCH\) \).*/\194/' "$tree/include/flashattn.h"
for name in $said; do finds "$name: expected" "$tools/check_release" "$tree"; done
git -C "$tree" init -q
git -C "$tree" -c user.name=n -c user.email=e commit -q --allow-empty -m "Add what is asked for"
"$tools/check_commits" "$tree" >/dev/null
git -C "$tree" -c user.name=n -c user.email=e commit -q --allow-empty -m "$(printf 'long %.0s' {1..15})"
finds "at most 72 columns" "$tools/check_commits" "$tree"

echo "each check finds its fault"
