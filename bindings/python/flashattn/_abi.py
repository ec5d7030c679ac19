"""The C ABI in ctypes: constants, structs and prototypes. Written by tools/generate_abi.py from flashattn.h, which is the manual:
change the header, then run it again."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

Handle = c_void_p


class Sized(ctypes.Structure):
    """A struct whose first field, struct_size, is set when it is made; every other field starts as zero."""

    def __init__(self, **fields: object) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


FA_VERSION_MAJOR = 0
FA_VERSION_MINOR = 2
FA_VERSION_PATCH = 0
FA_VERSION = 200
FA_TEXT_MAX = 2048

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
FA_TIMEOUT = 70
FA_PEER_FAILED = 71
FA_PEERS_DISAGREE = 72
FA_INTERNAL = 90

FA_BACKEND_AUTO = 0
FA_BACKEND_CPU = 1
FA_BACKEND_CUDA = 2
FA_BACKEND_HIP = 3

FA_MEMORY_DEFAULT = 0
FA_MEMORY_HOST = 1
FA_MEMORY_DEVICE = 2

FA_LOG_NONE = 0
FA_LOG_ERROR = 1
FA_LOG_INFO = 2
FA_LOG_DEBUG = 3

FA_PARAM_THREADS = 1
FA_PARAM_MAX_ISA = 2
FA_PARAM_LOG_LEVEL = 3
FA_PARAM_COUNT_WORK = 4
FA_PARAM_THREAD_POOL = 5
FA_INFO_BACKEND = 100
FA_INFO_DEVICE = 101
FA_INFO_MEMORY = 102
FA_INFO_ISA = 103
FA_INFO_STREAM = 104
FA_STAT_TILE_ROWS = 200
FA_STAT_TILE_KEYS = 201
FA_STAT_FLOPS = 202
FA_STAT_BYTES_READ = 203
FA_STAT_BYTES_WRITTEN = 204
FA_STAT_EXTRA_BYTES = 205

FA_ISA_GENERIC = 1
FA_ISA_AVX2 = 16
FA_ISA_AVX512 = 20
FA_ISA_AVX512_BF16 = 24
FA_ISA_AMX = 28
FA_ISA_AMX_FP16 = 32
FA_ISA_NEON = 64
FA_ISA_NEON_BF16 = 68
FA_ISA_SVE = 72
FA_ISA_SVE_BF16 = 76
FA_ISA_RVV = 112

FA_POOL_AUTO = 0
FA_POOL_OPENMP = 1
FA_POOL_OWN = 2
FA_POOL_CALLER = 3

FA_F32 = 1
FA_F16 = 2
FA_BF16 = 3
FA_E4M3 = 16
FA_E5M2 = 17
FA_E2M1 = 24
FA_E8M0 = 28
FA_I8 = 32
FA_I4 = 36
FA_U4 = 37
FA_BIT = 48
FA_Q4_0 = 258
FA_Q4_1 = 259
FA_Q5_0 = 262
FA_Q5_1 = 263
FA_Q8_0 = 264

FA_CAUSAL = 1 << 0
FA_WINDOW = 1 << 1
FA_SCALE_EXPLICIT = 1 << 2
FA_DETERMINISTIC = 1 << 3
FA_V_IN_K = 1 << 4

FA_PRECISION_DEFAULT = 0
FA_PRECISION_NATIVE = 1

FA_ALIGN_UNSET = 0
FA_ALIGN_TOP_LEFT = 1
FA_ALIGN_BOTTOM_RIGHT = 2
FA_ALIGN_EXPLICIT = 3

FA_ALGORITHM_FLASH = 0
FA_ALGORITHM_STANDARD = 1
FA_ALGORITHM_FLASH1 = 2

FA_SCORES_RAW = 0
FA_SCORES_CAPPED = 1
FA_SCORES_BIASED = 2
FA_SCORES_PROBABILITY = 3

FA_LIST_KEYS = 0
FA_LIST_SLOTS = 1

FA_STRIDED_Q = 1 << 0
FA_STRIDED_K = 1 << 1
FA_STRIDED_V = 1 << 2
FA_STRIDED_O = 1 << 3
FA_STRIDED_LSE = 1 << 4
FA_STRIDED_Q_TAIL = 1 << 5
FA_STRIDED_K_TAIL = 1 << 6

FA_OP_FORWARD = 1
FA_OP_MERGE = 2
FA_OP_APPEND_KV = 3
FA_OP_ROTARY = 4
FA_OP_BACKWARD = 5

FA_ARGS_STREAM = 1 << 0
FA_BACKWARD_ACCUMULATE = 1 << 8
FA_MERGE_ACCUMULATE = 1 << 8
FA_ROTARY_INTERLEAVED = 1 << 8
FA_APPEND_DYNAMIC_SCALE = 1 << 9
FA_ROTARY_OF_K = 1 << 10

FA_BAD_LENGTH = 1 << 0
FA_BAD_PAGE = 1 << 1
FA_BAD_INDEX = 1 << 2

FA_CONVERT_ACCUMULATE = 1 << 0

FA_OPERAND_LSE = 0x1
FA_OPERAND_Q_TAIL = 0x2
FA_OPERAND_K_TAIL = 0x4
FA_OPERAND_Q_DESCALE = 0x8
FA_OPERAND_K_DESCALE = 0x10
FA_OPERAND_V_DESCALE = 0x20
FA_OPERAND_K_SHIFT = 0x40
FA_OPERAND_V_SHIFT = 0x80
FA_OPERAND_O_SCALE = 0x100
FA_OPERAND_BIAS = 0x200
FA_OPERAND_BIAS_SCALE = 0x400
FA_OPERAND_MASK = 0x800
FA_OPERAND_KEY_RANGES = 0x1000
FA_OPERAND_KEY_LIST = 0x2000
FA_OPERAND_KEY_LIST_COUNT = 0x4000
FA_OPERAND_FULL_LIST = 0x8000
FA_OPERAND_FULL_LIST_COUNT = 0x10000
FA_OPERAND_ALIBI = 0x20000
FA_OPERAND_SINKS = 0x40000
FA_OPERAND_CAUSAL_OFFSET = 0x80000
FA_OPERAND_CU_SEQLENS_Q = 0x100000
FA_OPERAND_CU_SEQLENS_K = 0x200000
FA_OPERAND_SEQUSED_Q = 0x400000
FA_OPERAND_SEQUSED_K = 0x800000
FA_OPERAND_LEFTPAD_K = 0x1000000
FA_OPERAND_KV_BATCH_IDX = 0x2000000
FA_OPERAND_PAGE_TABLE = 0x4000000
FA_OPERAND_SCORES = 0x8000000
FA_OPERAND_RNG_STATE = 0x10000000
FA_OPERAND_DEVICE_STATUS = 0x20000000


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
        ("operands", c_uint64),
        ("strided", c_uint32),
        ("alignment", c_int32),
        ("q_dtype", c_int32),
        ("k_dtype", c_int32),
        ("v_dtype", c_int32),
        ("o_dtype", c_int32),
        ("q_tail_dtype", c_int32),
        ("k_tail_dtype", c_int32),
        ("q_descale_dtype", c_int32),
        ("k_descale_dtype", c_int32),
        ("v_descale_dtype", c_int32),
        ("bias_dtype", c_int32),
        ("mask_dtype", c_int32),
        ("list_space", c_int32),
        ("algorithm", c_int32),
        ("precision", c_int32),
        ("scores_stage", c_int32),
        ("num_splits", c_int32),
        ("reserve_units", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("dropout_p", c_float),
        ("batch", c_int64),
        ("heads_q", c_int64),
        ("heads_k", c_int64),
        ("heads_v", c_int64),
        ("seqlen_q", c_int64),
        ("seqlen_k", c_int64),
        ("dim_qk", c_int64),
        ("dim_v", c_int64),
        ("dim_tail", c_int64),
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
        ("mask_keys", c_int64),
        ("key_range_max", c_int64),
        ("list_max", c_int64),
        ("list_rows", c_int64),
        ("list_keys", c_int64),
        ("list_heads", c_int64),
        ("bias_period", c_int64 * 2),
        ("mask_period", c_int64 * 2),
        ("q_descale_block", c_int64 * 2),
        ("k_descale_block", c_int64 * 2),
        ("v_descale_block", c_int64 * 2),
        ("q_stride", c_int64 * 4),
        ("k_stride", c_int64 * 4),
        ("v_stride", c_int64 * 4),
        ("o_stride", c_int64 * 4),
        ("q_tail_stride", c_int64 * 4),
        ("k_tail_stride", c_int64 * 4),
        ("bias_stride", c_int64 * 4),
        ("mask_stride", c_int64 * 4),
        ("scores_stride", c_int64 * 4),
        ("lse_stride", c_int64 * 3),
        ("q_descale_stride", c_int64 * 4),
        ("k_descale_stride", c_int64 * 4),
        ("v_descale_stride", c_int64 * 4),
        ("key_range_stride", c_int64 * 4),
        ("list_stride", c_int64 * 4),
        ("list_count_stride", c_int64 * 3),
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
        ("q_tail", c_void_p),
        ("k_tail", c_void_p),
        ("q_descale", c_void_p),
        ("k_descale", c_void_p),
        ("v_descale", c_void_p),
        ("k_shift", c_void_p),
        ("v_shift", c_void_p),
        ("o_scale", c_void_p),
        ("bias", c_void_p),
        ("bias_scale", c_void_p),
        ("mask", c_void_p),
        ("key_ranges", c_void_p),
        ("key_list", c_void_p),
        ("key_list_count", c_void_p),
        ("full_list", c_void_p),
        ("full_list_count", c_void_p),
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
        ("scores", c_void_p),
        ("rng_state", c_void_p),
        ("device_status", c_void_p),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
        ("dropout_row", c_int64),
        ("dropout_key", c_int64),
        ("dropout_head", c_int64),
        ("dropout_heads", c_int64),
    ]


class BackwardArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("forward", POINTER(ForwardArgs)),
        ("dout", c_void_p),
        ("dlse", c_void_p),
        ("dq", c_void_p),
        ("dk", c_void_p),
        ("dv", c_void_p),
        ("dbias", c_void_p),
        ("dsinks", c_void_p),
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
        ("rotary_begin", c_int64),
        ("rotary_dim", c_int64),
        ("positions", c_void_p),
        ("position_offset", c_void_p),
        ("cu_seqlens", c_void_p),
        ("seqused", c_void_p),
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
        ("k_tail", c_void_p),
        ("k_descale", c_void_p),
        ("v_descale", c_void_p),
        ("k_shift", c_void_p),
        ("v_shift", c_void_p),
        ("cu_seqlens_new", c_void_p),
        ("seqused_new", c_void_p),
        ("positions", c_void_p),
        ("seqused_k", c_void_p),
        ("leftpad_k", c_void_p),
        ("kv_batch_idx", c_void_p),
        ("page_table", c_void_p),
        ("device_status", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("max_position", c_int64),
        ("rotary_begin", c_int64),
        ("rotary_dim", c_int64),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
    ]


class Conversion(ctypes.Structure):
    _fields_ = [
        ("x", c_void_p),
        ("out", c_void_p),
        ("size", c_int64 * 4),
        ("x_stride", c_int64 * 4),
        ("out_stride", c_int64 * 4),
        ("x_dtype", c_int32),
        ("out_dtype", c_int32),
        ("flags", c_uint64),
    ]


STRUCTS: dict[str, type[ctypes.Structure]] = {
    "fa_create_info_t": CreateInfo,
    "fa_device_info_t": DeviceInfo,
    "fa_attention_desc_t": AttentionDesc,
    "fa_forward_args_t": ForwardArgs,
    "fa_backward_args_t": BackwardArgs,
    "fa_merge_args_t": MergeArgs,
    "fa_rotary_args_t": RotaryArgs,
    "fa_append_kv_args_t": AppendKvArgs,
    "fa_conversion_t": Conversion,
}

# name: (result, arguments)
PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "fa_status_name": (c_char_p, [c_int32]),
    "fa_version": (c_int32, []),
    "fa_create_info_init": (c_int32, [POINTER(CreateInfo), c_uint32]),
    "fa_create": (c_int32, [POINTER(Handle), POINTER(CreateInfo)]),
    "fa_destroy": (c_int32, [Handle]),
    "fa_last_error": (c_char_p, [Handle]),
    "fa_backend_status": (c_int32, [c_int32, c_char_p, c_uint64]),
    "fa_device_count": (c_int32, [c_int32, POINTER(c_int32)]),
    "fa_device_info": (c_int32, [c_int32, c_int32, POINTER(DeviceInfo)]),
    "fa_isa_name": (c_char_p, [c_int32]),
    "fa_param_set": (c_int32, [Handle, c_int32, c_int64]),
    "fa_param_get": (c_int32, [Handle, c_int32, POINTER(c_int64)]),
    "fa_param_bounds": (c_int32, [c_int32, POINTER(c_int64), POINTER(c_int64), POINTER(c_int64)]),
    "fa_param_name": (c_char_p, [c_int32]),
    "fa_param_doc": (c_char_p, [c_int32]),
    "fa_malloc": (c_int32, [Handle, c_uint64, POINTER(c_void_p)]),
    "fa_free": (c_int32, [Handle, c_void_p]),
    "fa_copy": (c_int32, [Handle, c_void_p, c_void_p, c_uint64]),
    "fa_synchronize": (c_int32, [Handle]),
    "fa_copy_async": (c_int32, [Handle, c_void_p, c_void_p, c_uint64, c_uint32, c_void_p]),
    "fa_dtype_name": (c_char_p, [c_int32]),
    "fa_dtype_unit": (c_int32, [c_int32, POINTER(c_int64), POINTER(c_int64)]),
    "fa_attention_desc_init": (c_int32, [POINTER(AttentionDesc), c_uint32]),
    "fa_supports": (c_int32, [Handle, POINTER(AttentionDesc), c_int32]),
    "fa_explain": (c_int32, [Handle, POINTER(AttentionDesc), c_int32, c_char_p, c_uint64]),
    "fa_backend_supports": (c_int32, [c_int32, c_int32, POINTER(AttentionDesc), c_int32, c_char_p, c_uint64]),
    "fa_workspace_size": (c_int32, [Handle, POINTER(AttentionDesc), c_int32, POINTER(c_uint64)]),
    "fa_extent": (c_int32, [POINTER(AttentionDesc), c_int32, c_void_p, c_uint32, POINTER(c_uint64)]),
    "fa_forward_args_init": (c_int32, [POINTER(ForwardArgs), c_uint32]),
    "fa_forward": (c_int32, [Handle, POINTER(AttentionDesc), c_void_p, c_void_p, c_void_p, c_void_p]),
    "fa_forward_ex": (c_int32, [Handle, POINTER(AttentionDesc), POINTER(ForwardArgs)]),
    "fa_backward_args_init": (c_int32, [POINTER(BackwardArgs), c_uint32]),
    "fa_backward": (c_int32, [Handle, POINTER(AttentionDesc), POINTER(BackwardArgs)]),
    "fa_merge_args_init": (c_int32, [POINTER(MergeArgs), c_uint32]),
    "fa_merge": (c_int32, [Handle, POINTER(AttentionDesc), POINTER(MergeArgs)]),
    "fa_rotary_args_init": (c_int32, [POINTER(RotaryArgs), c_uint32]),
    "fa_rotary": (c_int32, [Handle, POINTER(AttentionDesc), POINTER(RotaryArgs)]),
    "fa_append_kv_args_init": (c_int32, [POINTER(AppendKvArgs), c_uint32]),
    "fa_append_kv": (c_int32, [Handle, POINTER(AttentionDesc), POINTER(AppendKvArgs)]),
    "fa_convert": (c_int32, [Handle, POINTER(Conversion), c_int64, c_uint32, c_void_p]),
    "fa_dropout_mask": (c_int32, [c_float, c_uint64, c_uint64, c_int64, c_int64, c_int64, c_int64, c_int64, POINTER(c_uint8)]),
    "fa_alibi_slopes": (c_int32, [c_int64, c_float, POINTER(c_float)]),
}
