#!/usr/bin/env bash
# generate.sh MATRIX_CALCULATOR: writes the tables of this folder anew. MATRIX_CALCULATOR: matrix_calculator.py of
# https://github.com/ROCm/amd_matrix_instruction_calculator (MIT), which needs Python's tabulate. Each table has a line for every lane:
# which elements of A, B or D its registers hold.
set -euo pipefail
calculator=$(realpath "$1")
cd "$(dirname "$0")"
table() {  # ARCHITECTURE INSTRUCTION OPERAND
    local wave=()
    case $1 in rdna*) wave=(-w 32) ;; esac
    python3 "$calculator" -a "$1" -i "v_$2" "-$3" -M -c "${wave[@]}" | grep "^[0-9]"
}
for operand in A B D; do
    for instruction in cdna3:mfma_f32_32x32x8 cdna3:mfma_f32_16x16x16 rdna3:wmma_f32_16x16x16 rdna4:wmma_f32_16x16x16; do
        architecture=${instruction%:*} name=${instruction#*:}
        table "$architecture" "${name}_f16" "$operand" >"${architecture}_${name}_$operand.csv"
        cmp <(table "$architecture" "${name}_bf16" "$operand") "${architecture}_${name}_$operand.csv"  # one table serves both types
    done
    for name in mfma_f32_32x32x8 mfma_f32_16x16x16; do  # and both generations
        cmp <(table cdna2 "${name}bf16_1k" "$operand") "cdna3_${name}_$operand.csv"
    done
    for name in mfma_f32_32x32x2 mfma_f32_16x16x4; do  # of f32
        table cdna3 "${name}_f32" "$operand" >"cdna3_${name}_$operand.csv"
        cmp <(table cdna2 "${name}f32" "$operand") "cdna3_${name}_$operand.csv"
    done
done
