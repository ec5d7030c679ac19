"""generate_abi.py refuses a header from which something of a release is gone, and says what; it notices one that grew.

generated_can_fail.py GENERATE CLANG
"""
import subprocess
import sys
import tempfile
from pathlib import Path

generate, clang = sys.argv[1:]
sys.path.insert(0, str(Path(generate).parent))
from generate_abi import begins_with
INCLUDE = Path(generate).resolve().parents[1] / "include"
HEADERS = {name: (INCLUDE / name).read_text() for name in ("flashattn.h", "flashattn_cp.h")}

# what of a header becomes what, and what is said of it
CHANGES = (
    ("FA_CAUSAL = 1 << 0,", "FA_CAUSAL = 1 << 9,", "FA_CAUSAL has changed"),
    ("FA_CAUSAL = 1 << 0,", "FA_CAUSAL = 1,", "FA_CAUSAL has changed"),
    ("FA_TIMEOUT = 70,", "", "FA_TIMEOUT is gone"),
    ("#define FA_OPERAND_BIAS 0x200ull", "#define FA_OPERAND_BIAS 0x200u", "FA_OPERAND_BIAS has changed"),
    ("    int32_t q_dtype; ", "    int32_t first; int32_t q_dtype; ", "fa_attention_desc_t has changed"),
    ("    int64_t parts; ", "    uint64_t parts; ", "fa_merge_args_t has changed"),
    ("fa_free(fa_handle_t handle, void* pointer)", "fa_free(fa_handle_t handle, void* pointer, int32_t now)", "fa_free has changed"),
    ("FA_API int32_t fa_version(void);", "", "fa_version is gone"),
    ("(void* user, int32_t level, const char* message)", "(void* user, const char* message)", "fa_log_fn has changed"),
    ("} fa_device_info_t;", "    uint64_t later;\n} fa_device_info_t;", "is not what the header says"),
    ("FA_BIT = 48,", "FA_BIT = 48, FA_LATER = 49,", "is not what the header says"),
    ("FA_CP_LAYOUT_ZIGZAG = 1 ", "FA_CP_LAYOUT_ZIGZAG = 2 ", "FA_CP_LAYOUT_ZIGZAG has changed"),
    ("    int64_t timeout_ms; ", "    uint64_t timeout_ms; ", "fa_cp_create_info_t has changed"),
    ("    int64_t begin;\n", "", "fa_cp_range_t has changed"),
    ("FA_API fa_status_t fa_cp_destroy(fa_cp_t cp);", "", "fa_cp_destroy is gone"),
)

faults = 0
for old, new, sentence in CHANGES:
    assert sum(text.count(old) for text in HEADERS.values()) == 1, old
    with tempfile.TemporaryDirectory() as folder:
        for name, text in HEADERS.items():
            Path(folder, name).write_text(text.replace(old, new))
        header = Path(folder, "flashattn.h")
        run = subprocess.run([sys.executable, generate, "--check", "--clang", clang, "--header", header], capture_output=True, text=True)
    grew = sentence.startswith("is not")
    if run.returncode != 1 or sentence not in run.stdout or grew == ("v0.2: " in run.stdout):
        faults += 1
        print(f"{old!r} became {new!r}: status {run.returncode}, expected {sentence!r}\n{run.stdout}{run.stderr}")

# A field may take the place of a reserved one of its size, of no other.
FIRST, RESERVED = ("dim", "int64_t"), ("reserved", "int32_t")
for now, then, allowed in (
    ([FIRST, ("shift", "float")], [FIRST, RESERVED], True),
    ([FIRST, ("shift", "int64_t")], [FIRST, RESERVED], False),
    ([FIRST], [FIRST, RESERVED], False),
    ([("shift", "int64_t"), RESERVED], [FIRST, RESERVED], False),
):
    if begins_with(now, then) != allowed:
        faults += 1
        print(f"{then} became {now}: expected it to be {'allowed' if allowed else 'refused'}")
print(f"{len(CHANGES)} changes, {faults} not noticed")
sys.exit(faults > 0)
