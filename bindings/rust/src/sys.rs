//! The C interface as it stands in `flashattn.h`, which is the manual. Written by `tools/generate_abi.py`: change the header, then run it
//! again.
#![allow(non_camel_case_types)]

use std::mem::size_of;
use std::os::raw::{c_char, c_void};

pub type fa_status_t = i32;

#[repr(C)]
pub struct fa_handle_s {
    _private: [u8; 0],
}
pub type fa_handle_t = *mut fa_handle_s;

pub type fa_log_fn = Option<unsafe extern "C" fn(*mut c_void, i32, *const c_char)>;
pub type fa_parallel_for_fn =
    Option<unsafe extern "C" fn(*mut c_void, i64, unsafe extern "C" fn(*mut c_void, i64), *mut c_void) -> fa_status_t>;

pub const FA_VERSION_MAJOR: i32 = 0;
pub const FA_VERSION_MINOR: i32 = 2;
pub const FA_VERSION_PATCH: i32 = 0;
pub const FA_VERSION: i32 = 200;
pub const FA_TEXT_MAX: i32 = 2048;

pub const FA_OK: i32 = 0;
pub const FA_INVALID_ARGUMENT: i32 = 10;
pub const FA_UNSUPPORTED_FIELD: i32 = 11;
pub const FA_UNSUPPORTED: i32 = 20;
pub const FA_OUT_OF_MEMORY: i32 = 30;
pub const FA_WORKSPACE_TOO_SMALL: i32 = 31;
pub const FA_NO_DEVICE: i32 = 40;
pub const FA_BACKEND_MISSING: i32 = 41;
pub const FA_BACKEND_INCOMPATIBLE: i32 = 42;
pub const FA_DEVICE_ERROR: i32 = 50;
pub const FA_INVALID_STATE: i32 = 60;
pub const FA_TIMEOUT: i32 = 70;
pub const FA_PEER_FAILED: i32 = 71;
pub const FA_PEERS_DISAGREE: i32 = 72;
pub const FA_INTERNAL: i32 = 90;

pub const FA_BACKEND_AUTO: i32 = 0;
pub const FA_BACKEND_CPU: i32 = 1;
pub const FA_BACKEND_CUDA: i32 = 2;
pub const FA_BACKEND_HIP: i32 = 3;

pub const FA_MEMORY_DEFAULT: i32 = 0;
pub const FA_MEMORY_HOST: i32 = 1;
pub const FA_MEMORY_DEVICE: i32 = 2;

pub const FA_LOG_NONE: i32 = 0;
pub const FA_LOG_ERROR: i32 = 1;
pub const FA_LOG_INFO: i32 = 2;
pub const FA_LOG_DEBUG: i32 = 3;

pub const FA_PARAM_THREADS: i32 = 1;
pub const FA_PARAM_MAX_ISA: i32 = 2;
pub const FA_PARAM_LOG_LEVEL: i32 = 3;
pub const FA_PARAM_COUNT_WORK: i32 = 4;
pub const FA_PARAM_THREAD_POOL: i32 = 5;
pub const FA_INFO_BACKEND: i32 = 100;
pub const FA_INFO_DEVICE: i32 = 101;
pub const FA_INFO_MEMORY: i32 = 102;
pub const FA_INFO_ISA: i32 = 103;
pub const FA_STAT_TILE_ROWS: i32 = 200;
pub const FA_STAT_TILE_KEYS: i32 = 201;
pub const FA_STAT_FLOPS: i32 = 202;
pub const FA_STAT_BYTES_READ: i32 = 203;
pub const FA_STAT_BYTES_WRITTEN: i32 = 204;
pub const FA_STAT_EXTRA_BYTES: i32 = 205;

pub const FA_ISA_GENERIC: i32 = 1;
pub const FA_ISA_AVX2: i32 = 16;
pub const FA_ISA_AVX512: i32 = 20;
pub const FA_ISA_AVX512_BF16: i32 = 24;
pub const FA_ISA_AMX: i32 = 28;
pub const FA_ISA_AMX_FP16: i32 = 32;
pub const FA_ISA_NEON: i32 = 64;
pub const FA_ISA_SVE: i32 = 72;

pub const FA_POOL_AUTO: i32 = 0;
pub const FA_POOL_OPENMP: i32 = 1;
pub const FA_POOL_OWN: i32 = 2;
pub const FA_POOL_CALLER: i32 = 3;

pub const FA_F32: i32 = 1;
pub const FA_F16: i32 = 2;
pub const FA_BF16: i32 = 3;
pub const FA_E4M3: i32 = 16;
pub const FA_E5M2: i32 = 17;
pub const FA_E2M1: i32 = 24;
pub const FA_E8M0: i32 = 28;
pub const FA_I8: i32 = 32;
pub const FA_I4: i32 = 36;
pub const FA_U4: i32 = 37;
pub const FA_BIT: i32 = 48;
pub const FA_Q4_0: i32 = 258;
pub const FA_Q4_1: i32 = 259;
pub const FA_Q5_0: i32 = 262;
pub const FA_Q5_1: i32 = 263;
pub const FA_Q8_0: i32 = 264;

pub const FA_CAUSAL: u32 = 1 << 0;
pub const FA_WINDOW: u32 = 1 << 1;
pub const FA_SCALE_EXPLICIT: u32 = 1 << 2;
pub const FA_DETERMINISTIC: u32 = 1 << 3;
pub const FA_V_IN_K: u32 = 1 << 4;

pub const FA_PRECISION_DEFAULT: i32 = 0;
pub const FA_PRECISION_NATIVE: i32 = 1;

pub const FA_ALIGN_UNSET: i32 = 0;
pub const FA_ALIGN_TOP_LEFT: i32 = 1;
pub const FA_ALIGN_BOTTOM_RIGHT: i32 = 2;
pub const FA_ALIGN_EXPLICIT: i32 = 3;

pub const FA_ALGORITHM_FLASH: i32 = 0;
pub const FA_ALGORITHM_STANDARD: i32 = 1;
pub const FA_ALGORITHM_FLASH1: i32 = 2;

pub const FA_SCORES_RAW: i32 = 0;
pub const FA_SCORES_CAPPED: i32 = 1;
pub const FA_SCORES_BIASED: i32 = 2;
pub const FA_SCORES_PROBABILITY: i32 = 3;

pub const FA_LIST_KEYS: i32 = 0;
pub const FA_LIST_SLOTS: i32 = 1;

pub const FA_STRIDED_Q: u32 = 1 << 0;
pub const FA_STRIDED_K: u32 = 1 << 1;
pub const FA_STRIDED_V: u32 = 1 << 2;
pub const FA_STRIDED_O: u32 = 1 << 3;
pub const FA_STRIDED_LSE: u32 = 1 << 4;
pub const FA_STRIDED_Q_TAIL: u32 = 1 << 5;
pub const FA_STRIDED_K_TAIL: u32 = 1 << 6;

pub const FA_OP_FORWARD: i32 = 1;
pub const FA_OP_MERGE: i32 = 2;
pub const FA_OP_APPEND_KV: i32 = 3;
pub const FA_OP_ROTARY: i32 = 4;
pub const FA_OP_BACKWARD: i32 = 5;

pub const FA_ARGS_STREAM: u32 = 1 << 0;
pub const FA_BACKWARD_ACCUMULATE: u32 = 1 << 8;
pub const FA_MERGE_ACCUMULATE: u32 = 1 << 8;
pub const FA_ROTARY_INTERLEAVED: u32 = 1 << 8;
pub const FA_APPEND_DYNAMIC_SCALE: u32 = 1 << 9;
pub const FA_ROTARY_OF_K: u32 = 1 << 10;

pub const FA_BAD_LENGTH: u32 = 1 << 0;
pub const FA_BAD_PAGE: u32 = 1 << 1;
pub const FA_BAD_INDEX: u32 = 1 << 2;

pub const FA_OPERAND_LSE: u64 = 0x1;
pub const FA_OPERAND_Q_TAIL: u64 = 0x2;
pub const FA_OPERAND_K_TAIL: u64 = 0x4;
pub const FA_OPERAND_Q_DESCALE: u64 = 0x8;
pub const FA_OPERAND_K_DESCALE: u64 = 0x10;
pub const FA_OPERAND_V_DESCALE: u64 = 0x20;
pub const FA_OPERAND_K_SHIFT: u64 = 0x40;
pub const FA_OPERAND_V_SHIFT: u64 = 0x80;
pub const FA_OPERAND_O_SCALE: u64 = 0x100;
pub const FA_OPERAND_BIAS: u64 = 0x200;
pub const FA_OPERAND_BIAS_SCALE: u64 = 0x400;
pub const FA_OPERAND_MASK: u64 = 0x800;
pub const FA_OPERAND_KEY_RANGES: u64 = 0x1000;
pub const FA_OPERAND_KEY_LIST: u64 = 0x2000;
pub const FA_OPERAND_KEY_LIST_COUNT: u64 = 0x4000;
pub const FA_OPERAND_FULL_LIST: u64 = 0x8000;
pub const FA_OPERAND_FULL_LIST_COUNT: u64 = 0x10000;
pub const FA_OPERAND_ALIBI: u64 = 0x20000;
pub const FA_OPERAND_SINKS: u64 = 0x40000;
pub const FA_OPERAND_CAUSAL_OFFSET: u64 = 0x80000;
pub const FA_OPERAND_CU_SEQLENS_Q: u64 = 0x100000;
pub const FA_OPERAND_CU_SEQLENS_K: u64 = 0x200000;
pub const FA_OPERAND_SEQUSED_Q: u64 = 0x400000;
pub const FA_OPERAND_SEQUSED_K: u64 = 0x800000;
pub const FA_OPERAND_LEFTPAD_K: u64 = 0x1000000;
pub const FA_OPERAND_KV_BATCH_IDX: u64 = 0x2000000;
pub const FA_OPERAND_PAGE_TABLE: u64 = 0x4000000;
pub const FA_OPERAND_SCORES: u64 = 0x8000000;
pub const FA_OPERAND_RNG_STATE: u64 = 0x10000000;
pub const FA_OPERAND_DEVICE_STATUS: u64 = 0x20000000;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_create_info_t {
    pub struct_size: u32,
    pub flags: u32,
    pub backend: i32,
    pub device: i32,
    pub memory: i32,
    pub log_level: i32,
    pub stream: *mut c_void,
    pub backend_dir: *const c_char,
    pub log: fa_log_fn,
    pub log_user: *mut c_void,
    pub parallel_for: fa_parallel_for_fn,
    pub parallel_user: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_device_info_t {
    pub struct_size: u32,
    pub backend: i32,
    pub device: i32,
    pub compute_units: i32,
    pub memory_bytes: u64,
    pub name: [c_char; 128],
    pub arch: [c_char; 64],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_attention_desc_t {
    pub struct_size: u32,
    pub flags: u32,
    pub operands: u64,
    pub strided: u32,
    pub alignment: i32,
    pub q_dtype: i32,
    pub k_dtype: i32,
    pub v_dtype: i32,
    pub o_dtype: i32,
    pub q_tail_dtype: i32,
    pub k_tail_dtype: i32,
    pub q_descale_dtype: i32,
    pub k_descale_dtype: i32,
    pub v_descale_dtype: i32,
    pub bias_dtype: i32,
    pub mask_dtype: i32,
    pub list_space: i32,
    pub algorithm: i32,
    pub precision: i32,
    pub scores_stage: i32,
    pub num_splits: i32,
    pub reserve_units: i32,
    pub scale: f32,
    pub softcap: f32,
    pub dropout_p: f32,
    pub batch: i64,
    pub heads_q: i64,
    pub heads_k: i64,
    pub heads_v: i64,
    pub seqlen_q: i64,
    pub seqlen_k: i64,
    pub dim_qk: i64,
    pub dim_v: i64,
    pub dim_tail: i64,
    pub total_q: i64,
    pub total_k: i64,
    pub kv_batch: i64,
    pub page_size: i64,
    pub num_pages: i64,
    pub page_table_stride: i64,
    pub window_left: i64,
    pub window_right: i64,
    pub chunk: i64,
    pub split_size: i64,
    pub mask_keys: i64,
    pub key_range_max: i64,
    pub list_max: i64,
    pub list_rows: i64,
    pub list_keys: i64,
    pub list_heads: i64,
    pub bias_period: [i64; 2],
    pub mask_period: [i64; 2],
    pub q_descale_block: [i64; 2],
    pub k_descale_block: [i64; 2],
    pub v_descale_block: [i64; 2],
    pub q_stride: [i64; 4],
    pub k_stride: [i64; 4],
    pub v_stride: [i64; 4],
    pub o_stride: [i64; 4],
    pub q_tail_stride: [i64; 4],
    pub k_tail_stride: [i64; 4],
    pub bias_stride: [i64; 4],
    pub mask_stride: [i64; 4],
    pub scores_stride: [i64; 4],
    pub lse_stride: [i64; 3],
    pub q_descale_stride: [i64; 4],
    pub k_descale_stride: [i64; 4],
    pub v_descale_stride: [i64; 4],
    pub key_range_stride: [i64; 4],
    pub list_stride: [i64; 4],
    pub list_count_stride: [i64; 3],
    pub alibi_batch_stride: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_forward_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub q: *const c_void,
    pub k: *const c_void,
    pub v: *const c_void,
    pub o: *mut c_void,
    pub lse: *mut f32,
    pub q_tail: *const c_void,
    pub k_tail: *const c_void,
    pub q_descale: *const c_void,
    pub k_descale: *const c_void,
    pub v_descale: *const c_void,
    pub k_shift: *const c_void,
    pub v_shift: *const c_void,
    pub o_scale: *const f32,
    pub bias: *const c_void,
    pub bias_scale: *const f32,
    pub mask: *const u8,
    pub key_ranges: *const i32,
    pub key_list: *const i32,
    pub key_list_count: *const i32,
    pub full_list: *const i32,
    pub full_list_count: *const i32,
    pub alibi_slopes: *const f32,
    pub sinks: *const f32,
    pub causal_offset: *const i32,
    pub cu_seqlens_q: *const i32,
    pub cu_seqlens_k: *const i32,
    pub seqused_q: *const i32,
    pub seqused_k: *const i32,
    pub leftpad_k: *const i32,
    pub kv_batch_idx: *const i32,
    pub page_table: *const i32,
    pub scores: *mut f32,
    pub rng_state: *const u64,
    pub device_status: *mut u32,
    pub dropout_seed: u64,
    pub dropout_offset: u64,
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_size: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_backward_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub forward: *const fa_forward_args_t,
    pub dout: *const c_void,
    pub dlse: *const f32,
    pub dq: *mut c_void,
    pub dk: *mut c_void,
    pub dv: *mut c_void,
    pub dbias: *mut f32,
    pub dsinks: *mut f32,
    pub dout_stride: [i64; 4],
    pub dlse_stride: [i64; 3],
    pub dq_stride: [i64; 4],
    pub dk_stride: [i64; 4],
    pub dv_stride: [i64; 4],
    pub dbias_stride: [i64; 4],
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_size: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_merge_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub parts: i64,
    pub o_parts: *const f32,
    pub lse_parts: *const f32,
    pub o_parts_stride: [i64; 5],
    pub lse_parts_stride: [i64; 4],
    pub o: *mut c_void,
    pub lse: *mut f32,
    pub sinks: *const f32,
    pub o_scale: *const f32,
    pub cu_seqlens_q: *const i32,
    pub seqused_q: *const i32,
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_size: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_rotary_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub x: *const c_void,
    pub out: *mut c_void,
    pub out_stride: [i64; 4],
    pub cos: *const f32,
    pub sin: *const f32,
    pub max_position: i64,
    pub rotary_begin: i64,
    pub rotary_dim: i64,
    pub positions: *const i32,
    pub position_offset: *const i32,
    pub cu_seqlens: *const i32,
    pub seqused: *const i32,
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_size: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_append_kv_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub k_new: *const c_void,
    pub v_new: *const c_void,
    pub seqlen_new: i64,
    pub total_new: i64,
    pub k_new_stride: [i64; 4],
    pub v_new_stride: [i64; 4],
    pub k: *mut c_void,
    pub v: *mut c_void,
    pub k_tail: *mut c_void,
    pub k_descale: *mut c_void,
    pub v_descale: *mut c_void,
    pub k_shift: *mut c_void,
    pub v_shift: *mut c_void,
    pub cu_seqlens_new: *const i32,
    pub seqused_new: *const i32,
    pub positions: *const i32,
    pub seqused_k: *const i32,
    pub leftpad_k: *const i32,
    pub kv_batch_idx: *const i32,
    pub page_table: *const i32,
    pub device_status: *mut u32,
    pub cos: *const f32,
    pub sin: *const f32,
    pub max_position: i64,
    pub rotary_begin: i64,
    pub rotary_dim: i64,
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_size: u64,
}

extern "C" {
    pub fn fa_status_name(status: fa_status_t) -> *const c_char;
    pub fn fa_version() -> i32;
    pub fn fa_create_info_init(info: *mut fa_create_info_t, struct_size: u32) -> fa_status_t;
    pub fn fa_create(handle: *mut fa_handle_t, info: *const fa_create_info_t) -> fa_status_t;
    pub fn fa_destroy(handle: fa_handle_t) -> fa_status_t;
    pub fn fa_last_error(handle: fa_handle_t) -> *const c_char;
    pub fn fa_backend_status(backend: i32, text: *mut c_char, n: u64) -> fa_status_t;
    pub fn fa_device_count(backend: i32, count: *mut i32) -> fa_status_t;
    pub fn fa_device_info(backend: i32, device: i32, info: *mut fa_device_info_t) -> fa_status_t;
    pub fn fa_isa_name(isa: i32) -> *const c_char;
    pub fn fa_param_set(handle: fa_handle_t, key: i32, value: i64) -> fa_status_t;
    pub fn fa_param_get(handle: fa_handle_t, key: i32, value: *mut i64) -> fa_status_t;
    pub fn fa_param_bounds(key: i32, min: *mut i64, max: *mut i64, initial: *mut i64) -> fa_status_t;
    pub fn fa_param_name(key: i32) -> *const c_char;
    pub fn fa_param_doc(key: i32) -> *const c_char;
    pub fn fa_malloc(handle: fa_handle_t, bytes: u64, pointer: *mut *mut c_void) -> fa_status_t;
    pub fn fa_free(handle: fa_handle_t, pointer: *mut c_void) -> fa_status_t;
    pub fn fa_copy(handle: fa_handle_t, to: *mut c_void, from: *const c_void, bytes: u64) -> fa_status_t;
    pub fn fa_synchronize(handle: fa_handle_t) -> fa_status_t;
    pub fn fa_dtype_name(dtype: i32) -> *const c_char;
    pub fn fa_dtype_unit(dtype: i32, elements: *mut i64, bytes: *mut i64) -> fa_status_t;
    pub fn fa_attention_desc_init(desc: *mut fa_attention_desc_t, struct_size: u32) -> fa_status_t;
    pub fn fa_supports(handle: fa_handle_t, desc: *const fa_attention_desc_t, op: i32) -> fa_status_t;
    pub fn fa_explain(handle: fa_handle_t, desc: *const fa_attention_desc_t, op: i32, text: *mut c_char, n: u64) -> fa_status_t;
    pub fn fa_backend_supports(
        backend: i32,
        device: i32,
        desc: *const fa_attention_desc_t,
        op: i32,
        text: *mut c_char,
        n: u64,
    ) -> fa_status_t;
    pub fn fa_workspace_size(handle: fa_handle_t, desc: *const fa_attention_desc_t, op: i32, bytes: *mut u64) -> fa_status_t;
    pub fn fa_extent(desc: *const fa_attention_desc_t, op: i32, args: *const c_void, field: u32, bytes: *mut u64) -> fa_status_t;
    pub fn fa_forward_args_init(args: *mut fa_forward_args_t, struct_size: u32) -> fa_status_t;
    pub fn fa_forward(
        handle: fa_handle_t,
        desc: *const fa_attention_desc_t,
        q: *const c_void,
        k: *const c_void,
        v: *const c_void,
        o: *mut c_void,
    ) -> fa_status_t;
    pub fn fa_forward_ex(handle: fa_handle_t, desc: *const fa_attention_desc_t, args: *const fa_forward_args_t) -> fa_status_t;
    pub fn fa_backward_args_init(args: *mut fa_backward_args_t, struct_size: u32) -> fa_status_t;
    pub fn fa_backward(handle: fa_handle_t, desc: *const fa_attention_desc_t, args: *const fa_backward_args_t) -> fa_status_t;
    pub fn fa_merge_args_init(args: *mut fa_merge_args_t, struct_size: u32) -> fa_status_t;
    pub fn fa_merge(handle: fa_handle_t, desc: *const fa_attention_desc_t, args: *const fa_merge_args_t) -> fa_status_t;
    pub fn fa_rotary_args_init(args: *mut fa_rotary_args_t, struct_size: u32) -> fa_status_t;
    pub fn fa_rotary(handle: fa_handle_t, desc: *const fa_attention_desc_t, args: *const fa_rotary_args_t) -> fa_status_t;
    pub fn fa_append_kv_args_init(args: *mut fa_append_kv_args_t, struct_size: u32) -> fa_status_t;
    pub fn fa_append_kv(handle: fa_handle_t, desc: *const fa_attention_desc_t, args: *const fa_append_kv_args_t) -> fa_status_t;
    pub fn fa_dropout_mask(
        p: f32,
        seed: u64,
        offset: u64,
        batch_head: i64,
        row: i64,
        rows: i64,
        key: i64,
        keys: i64,
        keep: *mut u8,
    ) -> fa_status_t;
    pub fn fa_alibi_slopes(heads: i64, max_bias: f32, slopes: *mut f32) -> fa_status_t;
}

macro_rules! sized {
    ($($name:ident: $bytes:literal),*) => {$(
        const _: () = assert!(size_of::<$name>() == $bytes);
        impl Default for $name {
            /// What the `_INIT` macro of the header gives: all zero but for `struct_size`.
            fn default() -> Self {
                // SAFETY: integers, floats, raw pointers and optional functions; all zero is a value of each.
                let mut zero: Self = unsafe { std::mem::zeroed() };
                zero.struct_size = size_of::<Self>() as u32;
                zero
            }
        }
    )*};
}
sized!(
    fa_create_info_t: 72,
    fa_device_info_t: 216,
    fa_attention_desc_t: 888,
    fa_forward_args_t: 320,
    fa_backward_args_t: 280,
    fa_merge_args_t: 176,
    fa_rotary_args_t: 152,
    fa_append_kv_args_t: 288
);
