#!/usr/bin/env bash
# install_nvcc.sh: prints the path of nvcc. Where none of the needed version is installed, NVIDIA's compiler wheels are put under
# build/nvcc: no package manager, no root, no GPU and no driver are needed to build the CUDA module.
set -euo pipefail
cd "$(dirname "$0")/.."

oldest=12.4
for nvcc in nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    nvcc=$(command -v "$nvcc") || continue
    version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
    if printf '%s\n' "$oldest" "$version" | sort -CV; then
        echo "$nvcc"
        exit
    fi
done

# One release: docs/generated/kernels.md is made from what this compiler says.
wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
folder=$PWD/build/nvcc
if [ "$(cat "$folder/wheels" 2>/dev/null)" != "${wheels[*]}" ]; then
    echo "== Installing nvcc (build/nvcc)" >&2
    /usr/bin/python3 -m venv --clear "$folder"
    "$folder/bin/pip" install --quiet --no-deps --only-binary :all: "${wheels[@]}" >&2
    toolkit=("$folder"/lib/python3*/site-packages/nvidia/cu13)
    ln -s lib "${toolkit[0]}/lib64"  # where nvcc.profile and CMake look
    ln -s libcudart.so.13 "${toolkit[0]}/lib/libcudart.so"  # CMake's sign of a toolkit
    ln -s "${toolkit[0]}" "$folder/toolkit"
    echo "${wheels[*]}" >"$folder/wheels"
fi
echo "$folder/toolkit/bin/nvcc"
