"""The C ABI of version 0.1 in ctypes: constants, structs and prototypes, in the order of flashattn.h.

Written by hand, so that nothing is generated or parsed at run time; a test compares every size, offset and value with what the
C compiler makes of the header.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_uint32, c_uint64, c_uint8, c_void_p

VERSION = (0, 1, 0)  # of the header that this file mirrors

# statuses
FA_OK = 0
FA_INVALID_ARGUMENT = 10
FA_UNSUPPORTED_FIELD = 11
FA_UNSUPPORTED = 20
FA_OUT_OF_MEMORY = 30
FA_WORKSPACE_TOO_SMALL = 31
FA_NO_DEVICE = 40
FA_BACKEND_MISSING = 41
FA_BACKEND_INCOMPATIBLE = 42
FA_DEVICE_ERROR = 50
FA_INVALID_STATE = 60
FA_INTERNAL = 90

# backend
FA_BACKEND_AUTO = 0
FA_BACKEND_CPU = 1
FA_BACKEND_CUDA = 2
FA_BACKEND_HIP = 3

# memory
FA_MEMORY_DEFAULT = 0
FA_MEMORY_HOST = 1
FA_MEMORY_DEVICE = 2

# log level
FA_LOG_NONE = 0
FA_LOG_ERROR = 1
FA_LOG_INFO = 2
FA_LOG_DEBUG = 3

# parameters and figures
FA_PARAM_THREADS = 1
FA_PARAM_MAX_ISA = 2
FA_PARAM_LOG_LEVEL = 3
FA_PARAM_COUNT = 4
FA_STAT_TILE_ROWS = 100
FA_STAT_TILE_KEYS = 101
FA_STAT_FLOPS = 102
FA_STAT_BYTES_READ = 103
FA_STAT_BYTES_WRITTEN = 104
FA_STAT_EXTRA_BYTES = 105

FA_ISA_GENERIC = 1
FA_ISA_AVX2 = 2
FA_ISA_AVX512 = 3
FA_ISA_AVX512_BF16 = 4
FA_ISA_AMX = 5
FA_ISA_AMX_FP16 = 6
FA_ISA_NEON = 16
FA_ISA_SVE = 17

# element types
FA_F32 = 1
FA_F16 = 2
FA_BF16 = 3
FA_E4M3 = 4
FA_E5M2 = 5
FA_I8 = 6

# flags
FA_CAUSAL = 1 << 0
FA_WINDOW = 1 << 1
FA_SCALE_EXPLICIT = 1 << 2
FA_DETERMINISTIC = 1 << 3

# alignment
FA_ALIGN_UNSET = 0
FA_ALIGN_TOP_LEFT = 1
FA_ALIGN_BOTTOM_RIGHT = 2
FA_ALIGN_EXPLICIT = 3

# algorithm
FA_ALGORITHM_FLASH = 0
FA_ALGORITHM_STANDARD = 1
FA_ALGORITHM_FLASH1 = 2

# scores_stage
FA_SCORES_RAW = 0
FA_SCORES_CAPPED = 1
FA_SCORES_BIASED = 2
FA_SCORES_PROBABILITY = 3

# strided
FA_STRIDED_Q = 1 << 0
FA_STRIDED_K = 1 << 1
FA_STRIDED_V = 1 << 2
FA_STRIDED_O = 1 << 3
FA_STRIDED_LSE = 1 << 4

# operands
FA_OPERAND_LSE = 1 << 0
FA_OPERAND_BIAS = 1 << 1
FA_OPERAND_MASK = 1 << 2
FA_OPERAND_ALIBI = 1 << 3
FA_OPERAND_SINKS = 1 << 4
FA_OPERAND_CAUSAL_OFFSET = 1 << 5
FA_OPERAND_CU_SEQLENS_Q = 1 << 6
FA_OPERAND_CU_SEQLENS_K = 1 << 7
FA_OPERAND_SEQUSED_Q = 1 << 8
FA_OPERAND_SEQUSED_K = 1 << 9
FA_OPERAND_LEFTPAD_K = 1 << 10
FA_OPERAND_KV_BATCH_IDX = 1 << 11
FA_OPERAND_PAGE_TABLE = 1 << 12
FA_OPERAND_Q_DESCALE = 1 << 13
FA_OPERAND_K_DESCALE = 1 << 14
FA_OPERAND_V_DESCALE = 1 << 15
FA_OPERAND_O_SCALE = 1 << 16
FA_OPERAND_SCORES = 1 << 17
FA_OPERAND_RNG_STATE = 1 << 18

# op
FA_OP_FORWARD = 1
FA_OP_MERGE = 2
FA_OP_APPEND_KV = 3
FA_OP_ROTARY = 4
FA_OP_BACKWARD = 5

# flags of the args structs
FA_ARGS_STREAM = 1 << 0
FA_BACKWARD_ACCUMULATE = 1 << 1
FA_MERGE_ACCUMULATE = 1 << 1
FA_ROTARY_INTERLEAVED = 1 << 1
FA_APPEND_DYNAMIC_SCALE = 1 << 2

Handle = c_void_p


class Sized(ctypes.Structure):
    """A struct whose first field, struct_size, is set when it is made; every other field starts as zero."""

    def __init__(self, **fields) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class CreateInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("backend", c_int32),
        ("device", c_int32),
        ("memory", c_int32),
        ("log_level", c_int32),
        ("stream", c_void_p),
        ("backend_dir", c_char_p),
        ("log", c_void_p),
        ("log_user", c_void_p),
        ("parallel_for", c_void_p),
        ("parallel_user", c_void_p),
    ]


class DeviceInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("backend", c_int32),
        ("device", c_int32),
        ("compute_units", c_int32),
        ("memory_bytes", c_uint64),
        ("name", c_char * 128),
        ("arch", c_char * 64),
    ]


class AttentionDesc(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("operands", c_uint32),
        ("strided", c_uint32),
        ("alignment", c_int32),
        ("q_dtype", c_int32),
        ("kv_dtype", c_int32),
        ("o_dtype", c_int32),
        ("bias_dtype", c_int32),
        ("algorithm", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("dropout_p", c_float),
        ("num_splits", c_int32),
        ("reserve_sms", c_int32),
        ("scores_stage", c_int32),
        ("batch", c_int64),
        ("heads_q", c_int64),
        ("heads_kv", c_int64),
        ("seqlen_q", c_int64),
        ("seqlen_k", c_int64),
        ("dim_qk", c_int64),
        ("dim_v", c_int64),
        ("total_q", c_int64),
        ("total_k", c_int64),
        ("kv_batch", c_int64),
        ("page_size", c_int64),
        ("num_pages", c_int64),
        ("page_table_stride", c_int64),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("chunk", c_int64),
        ("split_size", c_int64),
        ("q_stride", c_int64 * 4),
        ("k_stride", c_int64 * 4),
        ("v_stride", c_int64 * 4),
        ("o_stride", c_int64 * 4),
        ("bias_stride", c_int64 * 4),
        ("mask_stride", c_int64 * 4),
        ("scores_stride", c_int64 * 4),
        ("lse_stride", c_int64 * 3),
        ("q_descale_stride", c_int64 * 3),
        ("k_descale_stride", c_int64 * 3),
        ("v_descale_stride", c_int64 * 3),
        ("alibi_batch_stride", c_int64),
    ]


class ForwardArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("bias", c_void_p),
        ("mask", c_void_p),
        ("alibi_slopes", c_void_p),
        ("sinks", c_void_p),
        ("causal_offset", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("seqused_q", c_void_p),
        ("seqused_k", c_void_p),
        ("leftpad_k", c_void_p),
        ("kv_batch_idx", c_void_p),
        ("page_table", c_void_p),
        ("q_descale", c_void_p),
        ("k_descale", c_void_p),
        ("v_descale", c_void_p),
        ("o_scale", c_void_p),
        ("scores", c_void_p),
        ("rng_state", c_void_p),
        ("seed", c_uint64),
        ("offset", c_uint64),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
    ]


class BackwardArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("dout", c_void_p),
        ("dlse", c_void_p),
        ("dq", c_void_p),
        ("dk", c_void_p),
        ("dv", c_void_p),
        ("dbias", c_void_p),
        ("dsinks", c_void_p),
        ("bias", c_void_p),
        ("mask", c_void_p),
        ("alibi_slopes", c_void_p),
        ("sinks", c_void_p),
        ("causal_offset", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("seqused_q", c_void_p),
        ("seqused_k", c_void_p),
        ("leftpad_k", c_void_p),
        ("rng_state", c_void_p),
        ("seed", c_uint64),
        ("offset", c_uint64),
        ("dout_stride", c_int64 * 4),
        ("dlse_stride", c_int64 * 3),
        ("dq_stride", c_int64 * 4),
        ("dk_stride", c_int64 * 4),
        ("dv_stride", c_int64 * 4),
        ("dbias_stride", c_int64 * 4),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
    ]


class MergeArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("parts", c_int64),
        ("o_parts", c_void_p),
        ("lse_parts", c_void_p),
        ("o_parts_stride", c_int64 * 5),
        ("lse_parts_stride", c_int64 * 4),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("sinks", c_void_p),
        ("o_scale", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("seqused_q", c_void_p),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
    ]


class RotaryArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("x", c_void_p),
        ("out", c_void_p),
        ("out_stride", c_int64 * 4),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("max_position", c_int64),
        ("rotary_dim", c_int64),
        ("positions", c_void_p),
        ("position_offset", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("seqused_q", c_void_p),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
    ]


class AppendKvArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("k_new", c_void_p),
        ("v_new", c_void_p),
        ("seqlen_new", c_int64),
        ("total_new", c_int64),
        ("k_new_stride", c_int64 * 4),
        ("v_new_stride", c_int64 * 4),
        ("k", c_void_p),
        ("v", c_void_p),
        ("cu_seqlens_new", c_void_p),
        ("seqused_new", c_void_p),
        ("positions", c_void_p),
        ("seqused_k", c_void_p),
        ("leftpad_k", c_void_p),
        ("kv_batch_idx", c_void_p),
        ("page_table", c_void_p),
        ("k_descale", c_void_p),
        ("v_descale", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("max_position", c_int64),
        ("rotary_dim", c_int64),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
    ]


STRUCTS = {
    "fa_create_info_t": CreateInfo,
    "fa_device_info_t": DeviceInfo,
    "fa_attention_desc_t": AttentionDesc,
    "fa_forward_args_t": ForwardArgs,
    "fa_backward_args_t": BackwardArgs,
    "fa_merge_args_t": MergeArgs,
    "fa_rotary_args_t": RotaryArgs,
    "fa_append_kv_args_t": AppendKvArgs,
}

# name: (result, arguments), of the functions that the package calls
PROTOTYPES = {
    "fa_status_string": (c_char_p, [c_int32]),
    "fa_version": (c_int32, []),
    "fa_create": (c_int32, [POINTER(Handle), POINTER(CreateInfo)]),
    "fa_destroy": (c_int32, [Handle]),
    "fa_last_error": (c_char_p, [Handle]),
    "fa_get_backend": (c_int32, [Handle, POINTER(c_int32)]),
    "fa_backend_status": (c_int32, [c_int32, c_char_p, c_uint64]),
    "fa_device_count": (c_int32, [c_int32, POINTER(c_int32)]),
    "fa_device_info": (c_int32, [c_int32, c_int32, POINTER(DeviceInfo)]),
    "fa_set_i64": (c_int32, [Handle, c_int32, c_int64]),
    "fa_get_i64": (c_int32, [Handle, c_int32, POINTER(c_int64)]),
    "fa_explain": (c_int32, [Handle, POINTER(AttentionDesc), c_int32, c_char_p, c_uint64]),
    "fa_workspace_size": (c_int32, [Handle, POINTER(AttentionDesc), c_int32, POINTER(c_uint64)]),
    "fa_forward_ex": (c_int32, [Handle, POINTER(AttentionDesc), POINTER(ForwardArgs)]),
    "fa_backward": (c_int32, [Handle, POINTER(AttentionDesc), POINTER(BackwardArgs)]),
    "fa_merge": (c_int32, [Handle, POINTER(AttentionDesc), POINTER(MergeArgs)]),
    "fa_rotary": (c_int32, [Handle, POINTER(AttentionDesc), POINTER(RotaryArgs)]),
    "fa_append_kv": (c_int32, [Handle, POINTER(AttentionDesc), POINTER(AppendKvArgs)]),
    "fa_dropout_mask": (
        c_int32,
        [c_float, c_uint64, c_uint64, c_int64, c_int64, c_int64, c_int64, c_int64, POINTER(c_uint8)],
    ),
    "fa_alibi_slopes": (c_int32, [c_int64, POINTER(c_float)]),
}
