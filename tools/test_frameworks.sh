#!/usr/bin/env bash
# Tests the Python package with torch, JAX and the newest and oldest transformers, which are installed in a virtual environment of its own: build/frameworks, 7 GB, most
# of it what torch brings for GPUs. The library is built for it with XLA's handlers. Types are checked with both, too.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$PWD/build/frameworks
if ! "$venv/bin/python" -c "import torch, jax, mypy" 2>/dev/null; then
    python3 -m venv --clear "$venv"
    # The handlers' headers are those of the oldest JAX that is supported: XLA takes handlers of versions before its own.
    "$venv/bin/pip" install --quiet --only-binary :all: torch jax numpy ml_dtypes mypy==1.11.2
    "$venv/bin/pip" install --quiet --only-binary :all: --no-deps --target "$venv/headers" jaxlib==0.6.0
fi
oldest=$venv/transformers-4.56.0
if [ ! -e "$oldest/complete" ]; then
    "$venv/bin/pip" install --quiet --only-binary :all: "transformers<6"
    "$venv/bin/pip" install --quiet --only-binary :all: --target "$oldest" transformers==4.56.0
    rm -rf "$oldest"/numpy* # of which there is one for all
    touch "$oldest/complete"
fi
cmake -S . -B build/xla -G Ninja -DCMAKE_BUILD_TYPE=Release -DFA_TESTS=OFF -DFA_CLI=OFF -DFA_WERROR=ON \
    -DFA_XLA="$venv/headers/jaxlib/include" --log-level=WARNING >/dev/null
cmake --build build/xla -- --quiet

export TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 # which keep programs that call operators as an older version had them
export PYTHONPATH=$PWD/bindings/python PYTHONDONTWRITEBYTECODE=1 FLASHATTN_LIBRARY=$PWD/build/xla/src/libflashattn.so.0
export FLASHATTN_CP_LIBRARY=$PWD/build/xla/src/cp/libflashattn-cp.so.0
(cd tests/ffi/python && "$venv/bin/python" -m unittest test_context_parallel test_dlpack test_gradients test_jax test_jax_cache test_memory \
    test_torch test_torch_cache test_torch_operands test_torch_operators test_torch_plan test_torch_sdpa test_transformers test_paged_cache)
(cd tests/ffi/python && PYTHONPATH=$oldest:$PYTHONPATH "$venv/bin/python" -m unittest test_transformers test_paged_cache)
emulator=$PWD/build/release/src/emu/module
[ ! -e "$emulator/libflashattn-hip.so" ] || (cd tests/ffi/python && FLASHATTN_BACKEND_DIR=$emulator "$venv/bin/python" -m unittest test_torch.TorchOfRocm)
MYPYPATH=bindings/python "$venv/bin/python" -m mypy --strict --cache-dir build/xla/mypy -p flashattn
