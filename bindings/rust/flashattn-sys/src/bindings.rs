//! The C interface as it stands in `flashattn.h`, which is the manual. Written by `tools/generate_abi.py`: change the header, then run it
//! again.
#![allow(missing_docs, non_camel_case_types, rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

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
/// compare with fa_version()
pub const FA_VERSION: i32 = 200;
/// The longest text that the library writes into a caller's buffer, its terminating zero included.
pub const FA_TEXT_MAX: i32 = 2048;

pub const FA_OK: i32 = 0;
/// the call can never be right
pub const FA_INVALID_ARGUMENT: i32 = 10;
/// a flag, enum value or struct tail that this version of the library does not know
pub const FA_UNSUPPORTED_FIELD: i32 = 11;
/// the call is right, but this backend has no kernel for it
pub const FA_UNSUPPORTED: i32 = 20;
pub const FA_OUT_OF_MEMORY: i32 = 30;
pub const FA_WORKSPACE_TOO_SMALL: i32 = 31;
/// the backend works, but the device does not exist
pub const FA_NO_DEVICE: i32 = 40;
/// the backend's module is not installed
pub const FA_BACKEND_MISSING: i32 = 41;
/// the backend's module or driver is broken, of another version, or not trusted
pub const FA_BACKEND_INCOMPATIBLE: i32 = 42;
/// the device reported a failure
pub const FA_DEVICE_ERROR: i32 = 50;
/// handle used by two threads at once, or in a forked child; call not allowed now
pub const FA_INVALID_STATE: i32 = 60;
/// a peer did not answer in time
pub const FA_TIMEOUT: i32 = 70;
/// a peer, or the transport to it, failed
pub const FA_PEER_FAILED: i32 = 71;
/// peers gave different descriptors
pub const FA_PEERS_DISAGREE: i32 = 72;
/// a defect of the library: please report it
pub const FA_INTERNAL: i32 = 90;

/// the first usable of CUDA, HIP, CPU; decided once, in fa_create
pub const FA_BACKEND_AUTO: i32 = 0;
pub const FA_BACKEND_CPU: i32 = 1;
pub const FA_BACKEND_CUDA: i32 = 2;
pub const FA_BACKEND_HIP: i32 = 3;

/// HOST if the backend is AUTO, DEVICE if it is named
pub const FA_MEMORY_DEFAULT: i32 = 0;
/// ordinary memory, on every backend; a GPU backend copies it, synchronously
pub const FA_MEMORY_HOST: i32 = 1;
/// the device's own memory; on the CPU that is ordinary memory, too
pub const FA_MEMORY_DEVICE: i32 = 2;

pub const FA_LOG_NONE: i32 = 0;
pub const FA_LOG_ERROR: i32 = 1;
/// which backend was chosen and why others were not
pub const FA_LOG_INFO: i32 = 2;
/// one line a call
pub const FA_LOG_DEBUG: i32 = 3;

/// CPU threads, including the caller's, with any pool; 0: the number of CPUs that the calling
/// thread may use and, except for FA_POOL_CALLER, at most OpenMP's maximum (OMP_NUM_THREADS,
/// omp_set_num_threads)
pub const FA_PARAM_THREADS: i32 = 1;
/// FA_ISA_…: highest instruction set to use; 0: the best one. If the CPU lacks it: FA_UNSUPPORTED
pub const FA_PARAM_MAX_ISA: i32 = 2;
/// FA_LOG_…
pub const FA_PARAM_LOG_LEVEL: i32 = 3;
/// 1: forward calls count work and memory traffic into the FA_STAT_ figures (CPU backend). Counted
/// calls compute one f32 tile at a time. With 0, the same call may use a faster method that rounds
/// differently
pub const FA_PARAM_COUNT_WORK: i32 = 4;
/// FA_POOL_…: the pool of CPU threads
pub const FA_PARAM_THREAD_POOL: i32 = 5;
/// FA_BACKEND_… that the handle resolved to
pub const FA_INFO_BACKEND: i32 = 100;
/// index of the device
pub const FA_INFO_DEVICE: i32 = 101;
/// FA_MEMORY_HOST or _DEVICE
pub const FA_INFO_MEMORY: i32 = 102;
/// FA_ISA_… in use; 0 on a GPU
pub const FA_INFO_ISA: i32 = 103;
/// the native stream of fa_create_info_t, as an integer; 0 on the CPU
pub const FA_INFO_STREAM: i32 = 104;
/// query rows of a tile (Br)
pub const FA_STAT_TILE_ROWS: i32 = 200;
/// keys of a tile (Bc)
pub const FA_STAT_TILE_KEYS: i32 = 201;
/// floating-point operations of the products q·k and p·v
pub const FA_STAT_FLOPS: i32 = 202;
/// bytes moved from memory into tiles
pub const FA_STAT_BYTES_READ: i32 = 203;
/// bytes moved from tiles to memory
pub const FA_STAT_BYTES_WRITTEN: i32 = 204;
/// extra memory of the algorithm, in addition to inputs, outputs and one thread's tiles
pub const FA_STAT_EXTRA_BYTES: i32 = 205;

pub const FA_ISA_GENERIC: i32 = 1;
pub const FA_ISA_AVX2: i32 = 16;
pub const FA_ISA_AVX512: i32 = 20;
pub const FA_ISA_AVX512_BF16: i32 = 24;
pub const FA_ISA_AMX: i32 = 28;
pub const FA_ISA_AMX_FP16: i32 = 32;
pub const FA_ISA_NEON: i32 = 64;
/// with products of bf16 and of 8-bit integers: FEAT_BF16, FEAT_I8MM
pub const FA_ISA_NEON_BF16: i32 = 68;
pub const FA_ISA_SVE: i32 = 72;
/// SVE with the same products; vectors of 256 or 512 bits
pub const FA_ISA_SVE_BF16: i32 = 76;
/// RISC-V's V, version 1.0: vectors of 128 bits or more, of which 128, 256 or 512 are used
pub const FA_ISA_RVV: i32 = 112;

/// FA_POOL_CALLER if parallel_for was given, else FA_POOL_OWN
pub const FA_POOL_AUTO: i32 = 0;
/// an OpenMP team for each calling thread; its threads wait as OMP_WAIT_POLICY says.
/// Speed: unless this policy is passive, they wait without sleeping. If a program has the machine to itself and
/// makes call after call, they begin sooner: on 16 cores, calls take up to a fifth less time. If other threads
/// need the cores, calls take tens of times as long. With pauses between calls, they use tens of times as much
/// processor time.
/// Only the calling thread computes inside a parallel region. The same holds in a child of fork() if the
/// parent had made calls, because runtimes hang there. GNU's runtime also hangs in the child if the parent used
/// OpenMP by itself, which the library cannot see.
/// A runtime ends the process if the system refuses it a thread. The library therefore tests first how many
/// threads the system grants, and requests no more from OpenMP. If other programs take the last ones in
/// between, the process ends. A build without OpenMP: FA_UNSUPPORTED
pub const FA_POOL_OPENMP: i32 = 1;
/// one pool for all handles of the process. It has at most one thread less than there are CPUs. None of them
/// works if the calling threads fill the CPUs. They sleep within microseconds after their last work, and a call
/// does not wait for a thread that is slow to wake. Safe across fork()
pub const FA_POOL_OWN: i32 = 2;
/// parallel_for; FA_INVALID_ARGUMENT if none was given
pub const FA_POOL_CALLER: i32 = 3;

/// one element a unit, as in all types up to FA_E5M2, and in FA_I8
pub const FA_F32: i32 = 1;
pub const FA_F16: i32 = 2;
pub const FA_BF16: i32 = 3;
/// 8-bit float, 4 exponent bits, largest 448, no infinity (OCP "fn")
pub const FA_E4M3: i32 = 16;
/// 8-bit float, 5 exponent bits, largest 57344
pub const FA_E5M2: i32 = 17;
/// k and v only; two a byte, the even dim in the low half: 0 .5 1 1.5 2 3 4 6 and their negatives
pub const FA_E2M1: i32 = 24;
/// scales only: 2^(byte − 127), byte 255 is NaN
pub const FA_E8M0: i32 = 28;
/// k and v only; as with other types, a scale that is not given is 1
pub const FA_I8: i32 = 32;
/// k and v only; two a byte, the even dim in the low half; two's complement
pub const FA_I4: i32 = 36;
/// the same, 0 … 15
pub const FA_U4: i32 = 37;
/// masks only: eight a byte, key j in bit j & 7
pub const FA_BIT: i32 = 48;
/// 18 bytes: d, qs[16];              d · (x − 8)
pub const FA_Q4_0: i32 = 258;
/// 20 bytes: d, m, qs[16];           d · x + m
pub const FA_Q4_1: i32 = 259;
/// 22 bytes: d, qh[4], qs[16];       d · (x − 16)
pub const FA_Q5_0: i32 = 262;
/// 24 bytes: d, m, qh[4], qs[16];    d · x + m
pub const FA_Q5_1: i32 = 263;
/// 34 bytes: d, i8 qs[32];           d · x
pub const FA_Q8_0: i32 = 264;

/// keep keys j <= i + off
pub const FA_CAUSAL: u32 = 1 << 0;
/// window_left and window_right apply
pub const FA_WINDOW: u32 = 1 << 1;
/// scale applies; else 1 / sqrt(dim_qk)
pub const FA_SCALE_EXPLICIT: u32 = 1 << 2;
/// same bits every time; a forward always has them
pub const FA_DETERMINISTIC: u32 = 1 << 3;
/// v is the dims [0, dim_v) of k, with its scales: v and v_new are NULL, and all v fields except
/// dim_v are 0. Forward only
pub const FA_V_IN_K: u32 = 1 << 4;

/// q as given; P no coarser than q's type
pub const FA_PRECISION_DEFAULT: i32 = 0;
/// permits rounding, but does not promise it. q may be rounded to k's element type (to 8 bits: with a
/// scale per row, or per block of its dims), and P to v's. q, P, values of block types and scaled
/// values may be rounded to bf16. 8-bit P · v may be summed over keys in a matrix unit's short
/// accumulator. Study baselines ignore it
pub const FA_PRECISION_NATIVE: i32 = 1;

pub const FA_ALIGN_UNSET: i32 = 0;
/// off = 0: row 0 is on key 0
pub const FA_ALIGN_TOP_LEFT: i32 = 1;
/// off = keys − rows of the sequence: its last row is on its last key. Use it for decoding
pub const FA_ALIGN_BOTTOM_RIGHT: i32 = 2;
/// off = causal_offset[b] (FA_OPERAND_CAUSAL_OFFSET)
pub const FA_ALIGN_EXPLICIT: i32 = 3;

pub const FA_ALGORITHM_FLASH: i32 = 0;
/// study baseline, f32: all scores of a head in workspace, softmax over them, then times v
pub const FA_ALGORITHM_STANDARD: i32 = 1;
/// study baseline, f32: keys in the outer loop, o rewritten for every block of keys
pub const FA_ALGORITHM_FLASH1: i32 = 2;

/// scale · q·k, masks not applied
pub const FA_SCORES_RAW: i32 = 0;
/// after softcap, masks not applied
pub const FA_SCORES_CAPPED: i32 = 1;
/// after bias, ALiBi and every mask: −inf if a key is removed
pub const FA_SCORES_BIASED: i32 = 2;
/// after softmax (sink included), before dropout: 0 if a key is removed
pub const FA_SCORES_PROBABILITY: i32 = 3;

/// keys of the sequence, as masks count them
pub const FA_LIST_KEYS: i32 = 0;
/// slots of the cache: page · page_size + slot in the page. Only in key_list, with list_keys 1. Keys then have
/// no position, so causal, window, chunk, ALiBi, bias, mask, ranges, dropout and scores are not allowed.
/// Lengths of keys and a page table are ignored, but fa_append_kv uses a page table
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

/// use the args' stream, which must be of the handle's device (NULL: the legacy default stream),
/// instead of the handle's
pub const FA_ARGS_STREAM: u32 = 1 << 0;
pub const FA_BACKWARD_ACCUMULATE: u32 = 1 << 8;
/// fa_merge: o (f32) and lse already hold a state, and the parts are merged into it
pub const FA_MERGE_ACCUMULATE: u32 = 1 << 8;
/// fa_rotary, fa_append_kv: pairs are dims (2t, 2t + 1); else halves (t, t + rotary_dim /
/// 2)
pub const FA_ROTARY_INTERLEAVED: u32 = 1 << 8;
/// fa_append_kv: quantise by the largest magnitude of each block of dims, and store
/// the scales
pub const FA_APPEND_DYNAMIC_SCALE: u32 = 1 << 9;
/// fa_rotary: x has k's shape, type, strides and lengths instead of q's
pub const FA_ROTARY_OF_K: u32 = 1 << 10;

/// cu_seqlens, seqused, left padding, more new tokens than a cache has room for
pub const FA_BAD_LENGTH: u32 = 1 << 0;
/// a page id, of pages that are used
pub const FA_BAD_PAGE: u32 = 1 << 1;
/// kv_batch_idx, positions, entries and counts of lists, key ranges that do not ascend
pub const FA_BAD_INDEX: u32 = 1 << 2;

/// x (f32, f16 or bf16) is added to existing values of out (f32)
pub const FA_CONVERT_ACCUMULATE: u32 = 1 << 0;

/// operands: bit k stands for the k-th optional pointer of fa_forward_args_t, counted from lse. They are macros because they have 64
/// bits, and C's enumerators end at 31 bits.
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
    /// none yet: 0
    pub flags: u32,
    /// FA_BACKEND_…
    pub backend: i32,
    /// index within the backend; 0 is the first
    pub device: i32,
    /// FA_MEMORY_…
    pub memory: i32,
    /// FA_LOG_…; 0: FLASHATTN_LOG (error, info, debug) or none
    pub log_level: i32,
    /// GPU: native stream of calls without FA_ARGS_STREAM; must outlive the handle; NULL: the legacy
    /// default stream. FA_BACKEND_AUTO, CPU: must be NULL
    pub stream: *mut c_void,
    /// absolute folder of backend modules, searched before all others; copied; NULL: none
    pub backend_dir: *const c_char,
    /// NULL: lines go to the file of FLASHATTN_LOG_FILE, if that is set
    pub log: fa_log_fn,
    /// first argument of log
    pub log_user: *mut c_void,
    /// CPU backend only; NULL: see FA_PARAM_THREAD_POOL
    pub parallel_for: fa_parallel_for_fn,
    /// first argument of parallel_for
    pub parallel_user: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_device_info_t {
    pub struct_size: u32,
    /// FA_BACKEND_…
    pub backend: i32,
    /// index within the backend
    pub device: i32,
    /// CPU: hardware threads that this process may use; GPU: multiprocessors, as the GPU's runtime counts them
    pub compute_units: i32,
    /// memory of the device
    pub memory_bytes: u64,
    pub name: [c_char; 128],
    /// CPU: the best instruction set that the library can use on it; GPU: its architecture
    pub arch: [c_char; 64],
}

/// What is computed. For row i and key j of a sequence, in this order:
/// ```text
///     s = scale · (q_i · k_j)
///     s = softcap · tanh(s / softcap)          if softcap > 0
///     s = s + bias_scale_h · bias_ij           not capped; bias_scale_h is 1 without FA_OPERAND_BIAS_SCALE
///     s = s − slope · |i + off − j|            ALiBi
///     key removed, s = −inf                    causal, window, chunk, boolean mask, key ranges and lists,
///                                              bias of −inf (with any bias_scale), beyond the lengths
///     p = exp(s) / (Σ_j exp(s) + exp(sink))    the sink is one more logit per head, without a value
///     p = p · keep / (1 − dropout_p)           LSE is not affected
///     o = Σ_j p · v_j,   LSE = ln(Σ_j exp(s) + exp(sink))
/// ```
/// A row with no key left has o = 0 and LSE = −inf (with a sink: o = 0, LSE = sink). Products accumulate in f32. Then `scale` and
/// the scales of whole rows are applied to the sums. A score or sink below −2.35e38 counts as −inf (the key is removed, or there is
/// no sink). One above 2.35e38 counts as +inf (its row is NaN). Bytes outside the valid lengths are never used.
///
/// NaN and infinity. NaN in q or in an attended k gives NaN in the row's o and LSE. NaN in an attended v gives NaN in its column of
/// o. Infinity in v, also by a scale, gives ±inf or NaN there. A removed key never shows through k, bias or mask.
/// An infinite d or m of a block of k counts as NaN, and so does an infinite scale of a row of q or of a head of k.
/// Values of q and k that other scales and shifts make infinite count as if they were stored so; on a GPU, they may count as NaN.
/// Under FA_PRECISION_NATIVE, an infinite q may count as NaN.
/// A v that is not finite may also spoil its column in rows of the same sequence and kv head that do not attend it (0 · NaN). It
/// need not show in rows with a p that is 0 in f32. Which rows these are may differ between instruction sets and devices.
///
/// Example, causal with grouped heads:     d.flags = FA_CAUSAL; d.alignment = FA_ALIGN_BOTTOM_RIGHT; d.heads_q = 32; d.heads_k = 8;
/// Example, sliding window of 1024 keys:   d.flags = FA_CAUSAL | FA_WINDOW; d.window_left = 1023; d.alignment = …;
/// Example, packed sequences:              d.operands = FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
/// ```text
///                                         d.batch = 3; d.total_q = d.total_k = 60; d.seqlen_q = d.seqlen_k = 30;  (the longest)
///                                         cu_seqlens = {0, 10, 30, 60}
/// ```
/// Example, decoding from a paged cache:   d.operands = FA_OPERAND_PAGE_TABLE | FA_OPERAND_SEQUSED_K; d.seqlen_q = 1;
/// ```text
///                                         d.seqlen_k = 4096; d.page_size = 16; d.num_pages = 9000; page_table [batch][256]
/// ```
/// Example, (batch, head, row, dim) layout: d.strided = FA_STRIDED_Q; d.q_stride = {H·N·D, D, N·D, 1}
/// Example, one K and V for all batches:   d.strided = FA_STRIDED_K | FA_STRIDED_V; k_stride[0] = v_stride[0] = 0
/// Example, fp8 cache with scales per head: d.k_dtype = FA_E4M3; d.operands = FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
/// ```text
///                                         d.k_descale_stride = d.v_descale_stride = {0, 0, 1}
/// ```
/// Example, MXFP8 cache:                   d.k_dtype = FA_E4M3; d.k_descale_dtype = d.v_descale_dtype = FA_E8M0;
/// ```text
///                                         d.k_descale_block[1] = d.v_descale_block[1] = 32; and all four numbers of
///                                         d.k_descale_stride and d.v_descale_stride
/// ```
/// Example, causal, over a q8_0 cache:     d.q_dtype = FA_F32; d.k_dtype = FA_Q8_0; d.batch = 2; d.heads_q = 32; d.heads_k = 8;
/// ```text
///                                         d.seqlen_q = 1; d.seqlen_k = 256; d.dim_qk = 128;
///                                         d.flags = FA_CAUSAL; d.alignment = FA_ALIGN_BOTTOM_RIGHT; d.operands = FA_OPERAND_SEQUSED_K;
///                                         a.q = q; a.k = k_cache; a.v = v_cache; a.o = o; a.seqused_k = lengths;
/// ```
/// Example, q8_0 keys, q4_0 values:        d.k_dtype = FA_Q8_0; d.v_dtype = FA_Q4_0;     strides, if given, count blocks of 32 dims
/// Example, latent attention (MLA):        d.flags = FA_V_IN_K; d.heads_k = 1; d.dim_qk = 576; d.dim_v = 512;
/// Example, documents in one sequence:     d.operands = FA_OPERAND_KEY_RANGES; d.key_range_stride[2] = 1;
/// ```text
///                                         key_ranges [rows][2], for all heads: first key of the document of a row, and its last + 1
///                                         (if causal: row + 1)
/// ```
/// Example, a BlockMask of FlexAttention:  d.operands = FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT | FA_OPERAND_FULL_LIST |
/// ```text
///                                         FA_OPERAND_FULL_LIST_COUNT; d.list_rows = d.list_keys = 128; d.list_max = keys / 128;
///                                         kv_indices, kv_num_blocks, full_kv_indices, full_kv_num_blocks by their strides
/// ```
/// Example, top-k keys of each row:        d.operands = FA_OPERAND_KEY_LIST; d.list_max = k; d.list_heads = 1;
/// ```text
///                                         d.list_stride = {rows·k, 0, k, 1}
/// ```
/// Example, the same as slots of a cache:  and d.list_space = FA_LIST_SLOTS; d.page_size = 64; d.num_pages = 9000;
/// ```text
///                                         (d.seqlen_k is not read)
/// ```
/// Example, parts for fa_merge:            d.o_dtype = FA_F32; d.operands = FA_OPERAND_LSE
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_attention_desc_t {
    pub struct_size: u32,
    /// FA_CAUSAL …
    pub flags: u32,
    /// FA_OPERAND_…
    pub operands: u64,
    /// FA_STRIDED_…
    pub strided: u32,
    /// FA_ALIGN_…; no effect without causal, window, chunk or ALiBi
    pub alignment: i32,
    /// FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2; required
    pub q_dtype: i32,
    /// those, FA_I8, 4-bit types and blocks; 0: q's
    pub k_dtype: i32,
    /// as k_dtype; 0: k's. In a backward it must be k's (another type: reserved)
    pub v_dtype: i32,
    /// as q_dtype; 0: q's, or bf16 if q is an 8-bit float
    pub o_dtype: i32,
    /// FA_F32, FA_F16, FA_BF16; 0: q's
    pub q_tail_dtype: i32,
    /// the same
    pub k_tail_dtype: i32,
    /// FA_F32 (also by 0), FA_F16, FA_BF16, FA_E4M3, FA_E8M0
    pub q_descale_dtype: i32,
    /// the same, for k_descale and k_shift (which cannot be FA_E8M0)
    pub k_descale_dtype: i32,
    /// the same, for v_descale and v_shift
    pub v_descale_dtype: i32,
    /// FA_F32 (also by 0), FA_F16, FA_BF16
    pub bias_dtype: i32,
    /// 0: a byte for each pair; FA_BIT: key j is bit j & 7 of byte j >> 3, and strides count bytes
    pub mask_dtype: i32,
    /// FA_LIST_…
    pub list_space: i32,
    /// FA_ALGORITHM_…
    pub algorithm: i32,
    /// FA_PRECISION_…
    pub precision: i32,
    /// FA_SCORES_…, with FA_OPERAND_SCORES
    pub scores_stage: i32,
    /// parts of the keys that are computed in parallel, up to 65536; 0: chosen from descriptor and device
    pub num_splits: i32,
    /// GPU: number of SMs (compute_units of fa_device_info_t) left free for other streams; at least two are
    /// used. Kernels with one block per SM, such as Hopper's up to 256 dims, leave them free. All others
    /// choose their splits for the remaining SMs. No effect on the CPU
    pub reserve_units: i32,
    /// with FA_SCALE_EXPLICIT: multiplies q·k; up to ± 2.35e38
    pub scale: f32,
    /// > 0: caps scores to ± softcap; 0: off
    pub softcap: f32,
    /// probability of dropping, in [0, 1)
    pub dropout_p: f32,
    /// sequences; batch, seqlen_q, seqlen_k may be 0
    pub batch: i64,
    /// query heads
    pub heads_q: i64,
    /// divides heads_q: head h reads k head h · heads_k / heads_q; 0: heads_q
    pub heads_k: i64,
    /// the same for v; 0: heads_k. In a backward it must be heads_k (another number: reserved)
    pub heads_v: i64,
    /// rows of a sequence; with cu_seqlens_q or seqused_q the longest allowed
    pub seqlen_q: i64,
    /// keys of a sequence; with cu_seqlens_k, seqused_k or pages the longest allowed
    pub seqlen_k: i64,
    /// head dimension of q and k, 1 … 1024
    pub dim_qk: i64,
    /// head dimension of v and o, 1 … 1024, with FA_V_IN_K at most dim_qk; 0: dim_qk
    pub dim_v: i64,
    /// with q_tail or k_tail: number of the last dims of q and k that are in the tail; below dim_qk
    pub dim_tail: i64,
    /// with cu_seqlens_q: rows of the packed q, o
    pub total_q: i64,
    /// with cu_seqlens_k: rows of the packed k, v
    pub total_k: i64,
    /// with kv_batch_idx: sequences in the cache
    pub kv_batch: i64,
    /// with page_table or FA_LIST_SLOTS: keys of a page, >= 1
    pub page_size: i64,
    /// with the same: pages in the cache; ids are 0 … num_pages − 1
    pub num_pages: i64,
    /// entries between two rows of the table; 0: ceil(seqlen_k / page_size)
    pub page_table_stride: i64,
    /// with FA_WINDOW: keys kept to the left of i + off, inclusive; −1: all
    pub window_left: i64,
    /// with FA_WINDOW: keys kept to the right of i + off, inclusive; −1: all. With FA_CAUSAL it acts as 0
    pub window_right: i64,
    /// > 0: row i sees only keys of its own chunk, floor((i + off) / chunk); 0: off
    pub chunk: i64,
    /// fixed number of keys of a split: the bits of a sequence then do not depend on the rest of the batch; 0:
    /// off. Must be 0 if num_splits is set
    pub split_size: i64,
    /// number of columns of the mask, for the last keys of a sequence; earlier keys are kept; 0: all keys
    pub mask_keys: i64,
    /// intervals of a row in key_ranges; 0: 1
    pub key_range_max: i64,
    /// entries stored for a block of rows, in key_list and in full_list
    pub list_max: i64,
    /// rows of the tensor that share a list: 1 or a multiple of 16; packed sequences begin at multiples of
    /// it; 0: 1
    pub list_rows: i64,
    /// keys that an entry e names, from e · list_keys on: 1 or a multiple of 16; 0: 1
    pub list_keys: i64,
    /// number of lists over the heads, a divisor of heads_q: head h has list h · list_heads / heads_q; 0:
    /// heads_q
    pub list_heads: i64,
    /// (sequences, heads) after which the bias repeats: b mod period[0], h mod period[1]; 0: no
    /// repeat
    pub bias_period: [i64; 2],
    /// the same for the mask
    pub mask_period: [i64; 2],
    /// (rows, dims) that share a scale; 0: one row, all dims
    pub q_descale_block: [i64; 2],
    /// the same for k_descale and k_shift
    pub k_descale_block: [i64; 2],
    /// the same for v_descale and v_shift
    pub v_descale_block: [i64; 2],
    /// Strides, in units of the type (elements, except for 4-bit and block types): (batch, row, head, unit). The last is 1.
    /// Any other stride of an input may be 0, which broadcasts it. Strides are never negative. Along a dimension of size 0 or 1, any
    /// stride from 0 on is allowed and has no effect. Dense is [batch][seqlen][heads][dim]. Packed is [total][heads][dim], without a
    /// batch stride: give 0. Paged is [num_pages][page_size][heads][dim], with the page stride in [0].
    pub q_stride: [i64; 4],
    pub k_stride: [i64; 4],
    pub v_stride: [i64; 4],
    pub o_stride: [i64; 4],
    /// as q_stride
    pub q_tail_stride: [i64; 4],
    /// as k_stride; a stride of 0 between heads: all heads share one tail
    pub k_tail_stride: [i64; 4],
    /// (batch, query head, row, key), always literal, any value >= 0; rows and keys as the masks count them.
    pub bias_stride: [i64; 4],
    pub mask_stride: [i64; 4],
    pub scores_stride: [i64; 4],
    /// (batch, head, row); dense: [batch][heads_q][seqlen_q], packed [heads_q][total_q] (no batch stride)
    pub lse_stride: [i64; 3],
    /// (batch, block of rows, head, block of dims), always literal. The scale of a value is descale[b · s0 + floor(row / block[0]) ·
    /// s1 + head · s2 + floor(dim / block[1]) · s3]. row is counted in the tensor (packed row, cache slot, slot in the page), so a
    /// block of packed rows may span two sequences. b is the sequence, the cache's sequence, or the page. q counts query heads. Dims
    /// of tails have no scale.
    pub q_descale_stride: [i64; 4],
    pub k_descale_stride: [i64; 4],
    pub v_descale_stride: [i64; 4],
    /// (batch, query head, row, interval), in pairs, always literal; row is counted in the tensor
    /// (packed: no batch stride)
    pub key_range_stride: [i64; 4],
    /// of both lists: (batch, list head, block of rows, entry), always literal; packed: no batch
    /// stride
    pub list_stride: [i64; 4],
    /// (batch, list head, block of rows)
    pub list_count_stride: [i64; 3],
    /// slopes[b · stride + head]; 0: one slope per head for all sequences
    pub alibi_batch_stride: i64,
}

/// Where the data is, in the handle's memory. On the CPU, arrays of int32 are checked (FA_INVALID_ARGUMENT). A pointer must be given
/// exactly when its bit is in desc.operands. q, k, v and o must always be given, except that a tensor without elements may be NULL,
/// and v is NULL under FA_V_IN_K. Only element alignment is required. Outputs must not share elements with each other or with
/// inputs; interleaved slices are allowed. Structs are read during the call. The memory behind their pointers is used until the
/// stream has passed the call (CPU and host memory: until the call returns).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_forward_args_t {
    pub struct_size: u32,
    /// FA_ARGS_STREAM
    pub flags: u32,
    pub q: *const c_void,
    pub k: *const c_void,
    pub v: *const c_void,
    /// rows of a padded q beyond its length are set to 0; gaps of a packed one are not written
    pub o: *mut c_void,
    /// natural logarithm, scale and sink included; −inf if a row has no key, or is padding beyond its
    /// sequence's length
    pub lse: *mut f32,
    /// the last dim_tail dims of q; q then holds only the others
    pub q_tail: *const c_void,
    /// the same for k
    pub k_tail: *const c_void,
    /// multiplies the stored values; see q_descale_stride. The products must stay finite in f32, and
    /// so must scale · q_descale · k_descale · log2 e, or rows may be NaN
    pub q_descale: *const c_void,
    /// the same for k. Blocks hold their own scales: k_descale and k_shift are not allowed with
    /// them
    pub k_descale: *const c_void,
    /// the same for v
    pub v_descale: *const c_void,
    /// value = stored · descale + shift; has the type and the indices of k_descale
    pub k_shift: *const c_void,
    /// the same for v
    pub v_shift: *const c_void,
    /// one value: o is round(o · o_scale); an 8-bit o saturates
    pub o_scale: *const f32,
    /// [batch][heads_q][seqlen_q][seqlen_k] by bias_stride
    pub bias: *const c_void,
    /// [heads_q], finite; with slopes of fa_alibi_slopes, a bias that holds distances becomes
    /// ALiBi
    pub bias_scale: *const f32,
    /// the shape of bias, by mask_stride; nonzero: attend
    pub mask: *const u8,
    /// pairs (begin, end) of keys, end exclusive, by key_range_stride: a key in no range of its row
    /// is removed. Ranges of a row ascend and do not overlap. They may be empty, or reach beyond the
    /// keys
    pub key_ranges: *const i32,
    /// blocks of keys in which masks apply, in any order; −1: an unused entry. Each occurs at most
    /// once in the two lists together (not checked: a repeated entry may count twice). With a list, a
    /// key in no entry is removed
    pub key_list: *const i32,
    /// number of entries to read, up to list_max; without: list_max
    pub key_list_count: *const i32,
    /// blocks in which causal, window, chunk, boolean mask and ranges do not apply
    pub full_list: *const i32,
    /// as key_list_count
    pub full_list_count: *const i32,
    /// [heads_q], or [batch][heads_q] by alibi_batch_stride; at most 2.35e38; see fa_alibi_slopes
    pub alibi_slopes: *const f32,
    /// [heads_q] logits
    pub sinks: *const f32,
    /// [batch]
    pub causal_offset: *const i32,
    /// [batch + 1], not decreasing, within total_q; sequence b has rows [cu[b], cu[b + 1])
    pub cu_seqlens_q: *const i32,
    /// [batch + 1], within total_k
    pub cu_seqlens_k: *const i32,
    /// [batch] number of valid rows, <= seqlen_q or the packed range
    pub seqused_q: *const i32,
    /// [batch] number of valid keys, left padding included, <= seqlen_k or the packed range
    pub seqused_k: *const i32,
    /// [batch] slots to skip before key 0
    pub leftpad_k: *const i32,
    /// [batch] sequence of the cache (row of the page table) that sequence b reads
    pub kv_batch_idx: *const i32,
    /// [batch or kv_batch][ceil(seqlen_k / page_size)] page ids; unused entries are never read
    pub page_table: *const i32,
    /// [batch][heads_q][seqlen_q][seqlen_k] by scores_stride; pairs outside the valid lengths get 0
    /// (raw, capped, probability) or −inf (biased). With lists: (reserved)
    pub scores: *mut f32,
    /// {seed, offset}, read when the call runs; dropout_seed and dropout_offset must then be 0
    pub rng_state: *const u64,
    /// one word: a GPU checks the arrays in its memory first, with one more launch, and or-s
    /// FA_BAD_… bits into it
    pub device_status: *mut u32,
    /// see fa_dropout_mask; not used if dropout_p is 0
    pub dropout_seed: u64,
    /// the same
    pub dropout_offset: u64,
    /// with FA_ARGS_STREAM
    pub stream: *mut c_void,
    /// NULL: the handle's own scratch memory, which grows as needed
    pub workspace: *mut c_void,
    /// bytes; at least what fa_workspace_size gives
    pub workspace_size: u64,
    /// With dropout, if the call computes a part of a larger problem: where its first row, key and head are in the dropout mask of the
    /// larger problem. Row i, key j and head h of sequence b use that mask at row dropout_row + i, key dropout_key + j and batch_head =
    /// b * dropout_heads + dropout_head + h; dropout_heads 0: heads_q.
    pub dropout_row: i64,
    pub dropout_key: i64,
    pub dropout_head: i64,
    pub dropout_heads: i64,
}

/// Gradients of a loss with respect to the forward's inputs. The caller gives the loss's gradient with respect to o (dout) and, if the
/// loss depends on LSE, its gradient with respect to LSE (dlse). P is computed again, tile by tile, from q, k and LSE, and dropout from
/// its seed and offset.
/// ```text
///     P_ij  = exp(s_ij − LSE_i)                  s: the final score of the forward, after softcap, bias and masks
///     dv_j  = Σ_i P̃_ij dout_i                    P̃ = P · keep / (1 − dropout_p)
///     dS_ij = P_ij (dP_ij − Δ_i + dlse_i)        dP = keep / (1 − dropout_p) · dout vᵀ,  Δ_i = dout_i · o_i
///     dbias = bias_scale_h dS, dsinks_h = Σ_i exp(sink_h − LSE_i) (dlse_i − Δ_i)
///     dq_i  = scale Σ_j dS'_ij k_j,  dk_j = scale Σ_i dS'_ij q_i        dS' = dS · (1 − tanh²(scale q·k / softcap)); dS if
///                                                                       softcap is 0
/// ```
/// If several query heads share a k or v head, this head gets the sum over them.
///
/// Inputs. The descriptor is the forward's and has FA_OPERAND_LSE. FA_OPERAND_SCORES, scores_stage, num_splits and split_size have
/// no effect. `forward` points to the forward's args: its inputs, and o and lse as it wrote them. Its flags, stream, workspace and
/// scores are not used. dout has q's type and o's shape.
/// Types are f32, f16 and bf16. k and v have the same type and the same heads. Scales, shifts, tails, o_scale, caches (page_table,
/// kv_batch_idx) and the study baselines have no gradient here. All of these are FA_UNSUPPORTED.
/// With o_dtype = FA_F32, the forward keeps an f32 o for this call. If P is nearly uniform, dP − Δ cancels, and the Δ of a rounded o
/// spoils dq.
///
/// Outputs. A gradient has its input's type (dbias and dsinks: f32) and is rounded once. Each is optional: if its pointer is NULL,
/// it is not computed. dq, dk and dv share no elements with each other or with inputs. Rows and keys of padded tensors beyond the
/// valid lengths get 0. Gaps of packed tensors are not written. If a row's LSE is −inf (no keys and no sink), below −2.35e38 or
/// +inf, the row takes no part and has dq = 0, whatever its q and dout hold.
/// NaN and infinite values show in every gradient with a sum that they take part in. They need not show through a p that is 0 in
/// f32. They may also spoil gradients of other rows and keys of their sequence and kv head (0 · NaN), and sums over these (dbias,
/// dsinks). Which ones these are may differ between instruction sets and devices. They do not show in gradients of other sequences
/// and kv heads. Values outside the valid lengths show nowhere.
/// The CPU backend gives the same bits every time, for any number of threads. A GPU does so under FA_DETERMINISTIC.
///
/// Strides of the gradients. All zero means those of the forward's tensor (dout: o's, dlse: LSE's, dbias: bias's). dbias sums over a
/// dimension of stride 0 and over repeats (bias_period). If batch, rows or keys are 0, it is not written. If none is 0, no two of its
/// sums may share an address. If k or v is broadcast by a stride of 0, dk and dv need their own strides.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_backward_args_t {
    pub struct_size: u32,
    /// FA_ARGS_STREAM, FA_BACKWARD_ACCUMULATE
    pub flags: u32,
    /// the forward's args
    pub forward: *const fa_forward_args_t,
    /// gradient with respect to o
    pub dout: *const c_void,
    /// gradient with respect to LSE; NULL: 0
    pub dlse: *const f32,
    pub dq: *mut c_void,
    pub dk: *mut c_void,
    pub dv: *mut c_void,
    /// only with FA_OPERAND_BIAS; 0 if a key is removed
    pub dbias: *mut f32,
    /// [heads_q]; only with FA_OPERAND_SINKS
    pub dsinks: *mut f32,
    /// (batch, row, head, element)
    pub dout_stride: [i64; 4],
    /// (batch, head, row)
    pub dlse_stride: [i64; 3],
    pub dq_stride: [i64; 4],
    pub dk_stride: [i64; 4],
    pub dv_stride: [i64; 4],
    /// (batch, query head, row, key)
    pub dbias_stride: [i64; 4],
    /// as in the forward
    pub stream: *mut c_void,
    /// as in the forward
    pub workspace: *mut c_void,
    /// as in the forward
    pub workspace_size: u64,
}

/// Merges partial results over disjoint sets of keys into the whole. Part p is an f32 o with its LSE, as fa_forward_ex writes them
/// with o_dtype = FA_F32 and FA_OPERAND_LSE. Parts are merged in ascending order. An LSE of −inf, below −2.35e38 or +inf means that
/// a part saw no key, and its o is ignored. A sink enters once: in one part's forward, or here by FA_OPERAND_SINKS, never both.
/// o_scale, too, enters once. It is not allowed with FA_MERGE_ACCUMULATE.
/// These fields of the descriptor are read: batch, heads_q, seqlen_q, total_q, dim_v, o_dtype, o and LSE strides, and q_dtype for
/// the default of o_dtype. These operands are read: FA_OPERAND_LSE, _SINKS, _O_SCALE, _CU_SEQLENS_Q, _SEQUSED_Q. Any other operand
/// bit is allowed and ignored, so the forward's own descriptor can be used.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_merge_args_t {
    pub struct_size: u32,
    /// FA_ARGS_STREAM, FA_MERGE_ACCUMULATE
    pub flags: u32,
    /// number of parts, >= 0
    pub parts: i64,
    pub o_parts: *const f32,
    pub lse_parts: *const f32,
    /// (part, batch, row, head, element); all zero: dense [parts][batch][seqlen_q][heads_q][dim_v] or
    /// [parts][total_q][heads_q][dim_v] (packed: no batch stride)
    pub o_parts_stride: [i64; 5],
    /// (part, batch, head, row); all zero: dense [parts][batch][heads_q][seqlen_q] or
    /// [parts][heads_q][total_q]
    pub lse_parts_stride: [i64; 4],
    pub o: *mut c_void,
    pub lse: *mut f32,
    /// as in the forward, and so are the fields below
    pub sinks: *const f32,
    pub o_scale: *const f32,
    pub cu_seqlens_q: *const i32,
    pub seqused_q: *const i32,
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_size: u64,
}

/// Rotary embedding of a tensor with q's shape, type, strides and lengths. Dims [rotary_begin, rotary_begin + rotary_dim) of each
/// head are rotated by the angle of the row's position. The other dims are copied. The position of row i of sequence b is
/// positions[...] if given, else position_offset[b] + i, else i. Positions count after left padding. Arithmetic is in f32, with one
/// rounding. Types are f32, f16, bf16.
/// These fields of the descriptor are read: batch, heads_q, seqlen_q, total_q, dim_qk, q_dtype, q strides, FA_OPERAND_CU_SEQLENS_Q
/// and _SEQUSED_Q. Other operands are ignored. Rows beyond a sequence's length are not written.
/// Under FA_ROTARY_OF_K, these fields replace them: heads_k, seqlen_k, total_k, k_dtype, k strides, FA_OPERAND_CU_SEQLENS_K and
/// _SEQUSED_K. FA_OPERAND_PAGE_TABLE and _KV_BATCH_IDX are then FA_UNSUPPORTED, because fa_append_kv rotates the keys that it
/// stores.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_rotary_args_t {
    pub struct_size: u32,
    /// FA_ARGS_STREAM, FA_ROTARY_…
    pub flags: u32,
    pub x: *const c_void,
    /// may be x itself, with x's strides
    pub out: *mut c_void,
    /// all zero: x's
    pub out_stride: [i64; 4],
    /// [max_position][rotary_dim / 2], dense
    pub cos: *const f32,
    /// the same
    pub sin: *const f32,
    /// rows of cos and sin
    pub max_position: i64,
    /// first rotated dim
    pub rotary_begin: i64,
    /// number of rotated dims: even, 2 … dim_qk − rotary_begin
    pub rotary_dim: i64,
    /// [batch][seqlen_q], packed [total_q]; or NULL
    pub positions: *const i32,
    /// [batch]; or NULL
    pub position_offset: *const i32,
    /// cu_seqlens_q of the forward, for k cu_seqlens_k
    pub cu_seqlens: *const i32,
    /// seqused_q of the forward, for k seqused_k
    pub seqused: *const i32,
    /// as in the forward, and so are the two below
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_size: u64,
}

/// Writes new tokens into the descriptor's cache (its k and v strides and types, pages, kv_batch_idx, leftpad_k).
/// Slots. Token t of sequence b goes to slot seqused_k[b] + t, or to slot positions[...] (−1: skip this token). Slots include left
/// padding and must be in [0, seqlen_k). Nothing outside the sequence's own slots is ever written. seqused_k is the length *before*
/// the call. The caller adds the new tokens afterwards. Without FA_OPERAND_SEQUSED_K and positions, tokens start at the left
/// padding. If two tokens of one call share a slot, it is undefined which of them remains. If cos and sin are given, k_new is
/// rotated first (position = slot − left padding).
/// Inputs. k_new and v_new have q_dtype (f32, f16, bf16) and shape [batch][seqlen_new][heads][dim], or packed
/// [total_new][heads][dim] by cu_seqlens_new. Under FA_V_IN_K there is no v, and no v_new. With a tail, k_new has all dim_qk dims.
/// The last dim_tail of them go to k_tail.
/// Conversion. If the cache has another type, the tokens are converted to it. Blocks are quantised as ggml's reference does, byte
/// for byte, and need no descale operands. Their f16 scale is infinite beyond f16's range. A block holds NaN if one of its values is
/// not finite. Other types store round((x − shift) / descale) with the given scales (none: 1) and shifts (none: 0), saturated in 8
/// and 4 bits.
/// Dynamic scales. Under FA_APPEND_DYNAMIC_SCALE, caches of 8 and 4 bits (not blocks; k, v or both) get computed scales, which are
/// written into k_descale and v_descale. These need distinct entries for each slot, head and block of dims. A block has one row.
/// descale = largest magnitude in the block / largest value of the type (E4M3 448, E5M2 57344, E2M1 6, I8 127, I4 7, U4 15), at
/// least 2^-126 and finite. An e8m0 scale is rounded up to a power of two, others are rounded to nearest. FA_U4 with shifts: shift =
/// smallest value, descale = (largest − smallest) / 15. A block of zeros has scale 1. If a 4-bit block has a non-finite value, its
/// scale is NaN.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_append_kv_args_t {
    pub struct_size: u32,
    /// FA_ARGS_STREAM, FA_APPEND_DYNAMIC_SCALE, FA_ROTARY_INTERLEAVED
    pub flags: u32,
    /// the new keys
    pub k_new: *const c_void,
    /// the new values
    pub v_new: *const c_void,
    /// tokens of a sequence; with cu_seqlens_new or seqused_new the most allowed
    pub seqlen_new: i64,
    /// with cu_seqlens_new: rows of the packed k_new, v_new
    pub total_new: i64,
    /// (batch, row, head, element); all zero: dense
    pub k_new_stride: [i64; 4],
    /// the same
    pub v_new_stride: [i64; 4],
    /// the cache
    pub k: *mut c_void,
    /// the cache
    pub v: *mut c_void,
    /// as in the forward, by their bits in desc.operands, and so are the four below
    pub k_tail: *mut c_void,
    pub k_descale: *mut c_void,
    pub v_descale: *mut c_void,
    pub k_shift: *mut c_void,
    pub v_shift: *mut c_void,
    /// [batch + 1] or NULL
    pub cu_seqlens_new: *const i32,
    /// [batch] number of tokens that are given, or NULL
    pub seqused_new: *const i32,
    /// [batch][seqlen_new], packed [total_new], or NULL
    pub positions: *const i32,
    /// as in the forward, by their bits in desc.operands, and so are the four below
    pub seqused_k: *const i32,
    pub leftpad_k: *const i32,
    pub kv_batch_idx: *const i32,
    pub page_table: *const i32,
    pub device_status: *mut u32,
    /// [max_position][rotary_dim / 2] or NULL: no rotation
    pub cos: *const f32,
    /// the same
    pub sin: *const f32,
    /// rows of cos and sin
    pub max_position: i64,
    /// as in fa_rotary
    pub rotary_begin: i64,
    /// as in fa_rotary
    pub rotary_dim: i64,
    /// as in the forward, and so are the two below
    pub stream: *mut c_void,
    pub workspace: *mut c_void,
    pub workspace_size: u64,
}

/// Copies one tensor into another of the same size. The two share no element. Elements of equal types are copied bit for bit, for
/// every type except FA_BIT. f32, f16 and bf16 are converted into each other, rounded once. Strides count units, are literal, and 0
/// or more. The last is 1. No two elements of `out` share an address. This struct is an element of an array, so it is frozen: it never
/// grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_conversion_t {
    /// NULL: zeros; x_stride and x_dtype are then not read
    pub x: *const c_void,
    pub out: *mut c_void,
    /// elements: (batch, row, head, dim), or any other four dimensions; 1 for a dimension that is not used
    pub size: [i64; 4],
    pub x_stride: [i64; 4],
    pub out_stride: [i64; 4],
    /// FA_F32 …
    pub x_dtype: i32,
    /// FA_F32 …
    pub out_dtype: i32,
    /// FA_CONVERT_…
    pub flags: u64,
}

extern "C" {
    /// The name of a status, "FA_OK" to "FA_INTERNAL"; "unknown status" for any other value. Never NULL.
    pub fn fa_status_name(status: fa_status_t) -> *const c_char;
    /// Version of the library that runs, as major * 10000 + minor * 100 + patch; compare with FA_VERSION.
    pub fn fa_version() -> i32;
    pub fn fa_create_info_init(info: *mut fa_create_info_t, struct_size: u32) -> fa_status_t;
    /// Creates a handle. info NULL: AUTO with host memory. A named backend is never replaced by another. AUTO skips backends that are
    /// not usable (the log and fa_explain say why) and ends at the CPU. On failure *handle is NULL, and fa_last_error(NULL) has the
    /// message.
    /// These environment variables are read once, through secure_getenv:
    ///   FLASHATTN_BACKEND_DIR  an absolute folder of backend modules, searched after info.backend_dir
    ///   FLASHATTN_LOG          none, error, info or debug, if info.log_level is 0; any other word is logged once and counts as unset
    ///   FLASHATTN_LOG_FILE     the path of a regular file to which lines are appended if info.log is NULL. If it does not exist, it is
    /// ```text
    ///                          created for its user only. A link is not followed. If it cannot be opened, lines are lost, and no call fails
    /// ```
    ///   FLASHATTN_MAX_ISA      the highest instruction set of the CPU backend, as FA_PARAM_MAX_ISA sets it
    ///   FLASHATTN_MAX_SHARED   for tests and measurements: limits the shared memory of a block on a GPU to this many KB, 64 or more. Kernels
    /// ```text
    ///                          are chosen as on a GPU that has no more. Below 227, Hopper's own kernels are not used
    /// ```
    ///   OMP_STACKSIZE          and GOMP_STACKSIZE, KMP_STACKSIZE: the stack size of OpenMP's threads. With FA_POOL_OPENMP, the library
    /// ```text
    ///                          first tests how many threads with this stack the system grants
    /// ```
    /// Errors: FA_INVALID_ARGUMENT (also for a FLASHATTN_MAX_ISA that names no level, and a FLASHATTN_MAX_SHARED that is no such number),
    /// FA_UNSUPPORTED_FIELD, FA_UNSUPPORTED (FLASHATTN_MAX_ISA names a level that this CPU lacks), FA_OUT_OF_MEMORY, FA_NO_DEVICE,
    /// FA_BACKEND_MISSING, FA_BACKEND_INCOMPATIBLE, FA_DEVICE_ERROR.
    pub fn fa_create(handle: *mut fa_handle_t, info: *const fa_create_info_t) -> fa_status_t;
    /// Frees the handle and its scratch memory. Memory of fa_malloc must have been freed before. NULL is allowed. As with free(), no
    /// call on the handle may be running, and nothing checks this. A call that never returned, because a callback threw or its thread
    /// was cancelled, is not running.
    pub fn fa_destroy(handle: fa_handle_t) -> fa_status_t;
    /// The message of the last failed call on this handle, "" after a call that succeeded. It is valid until the next call on the
    /// handle. With NULL, it is the calling thread's last message from a function without a handle (fa_create, fa_device_count, …).
    pub fn fa_last_error(handle: fa_handle_t) -> *const c_char;
    /// Says whether a backend is usable here: FA_OK, or the status that fa_create would give for it. The reason is written into text, up
    /// to n bytes with the terminating zero. With NULL or 0, nothing is written. FA_TEXT_MAX bytes always suffice. It needs no
    /// handle.
    pub fn fa_backend_status(backend: i32, text: *mut c_char, n: u64) -> fa_status_t;
    /// The number of devices of a backend; the CPU has one. If a backend is not usable, its status is returned, and the count is 0.
    pub fn fa_device_count(backend: i32, count: *mut i32) -> fa_status_t;
    /// Describes a device. The caller has set info->struct_size (to sizeof *info). The rules of sized structs apply to it, too.
    pub fn fa_device_info(backend: i32, device: i32, info: *mut fa_device_info_t) -> fa_status_t;
    /// The name of a level, such as "avx512_bf16", as FLASHATTN_MAX_ISA spells it; NULL: no such level.
    pub fn fa_isa_name(isa: i32) -> *const c_char;
    /// Sets a parameter; fa_param_get reads a parameter, fact or figure. Errors: FA_INVALID_ARGUMENT (unknown key, value out of bounds,
    /// read-only key), FA_UNSUPPORTED.
    pub fn fa_param_set(handle: fa_handle_t, key: i32, value: i64) -> fa_status_t;
    pub fn fa_param_get(handle: fa_handle_t, key: i32, value: *mut i64) -> fa_status_t;
    /// Bounds and default of a parameter. Any of the three pointers may be NULL. It needs no handle.
    pub fn fa_param_bounds(key: i32, min: *mut i64, max: *mut i64, initial: *mut i64) -> fa_status_t;
    /// Name ("threads") and one-line description of a parameter; NULL for an unknown key.
    pub fn fa_param_name(key: i32) -> *const c_char;
    pub fn fa_param_doc(key: i32) -> *const c_char;
    /// Memory that this handle's calls accept, aligned to 256 bytes. Zero bytes give a NULL pointer and FA_OK. fa_copy copies between
    /// any two of host and device memory, and returns when it is done. fa_synchronize waits for all work of the handle's stream. On the
    /// CPU these are an aligned malloc, memcpy, and nothing.
    pub fn fa_malloc(handle: fa_handle_t, bytes: u64, pointer: *mut *mut c_void) -> fa_status_t;
    pub fn fa_free(handle: fa_handle_t, pointer: *mut c_void) -> fa_status_t;
    pub fn fa_copy(handle: fa_handle_t, to: *mut c_void, from: *const c_void, bytes: u64) -> fa_status_t;
    pub fn fa_synchronize(handle: fa_handle_t) -> fa_status_t;
    /// Copies as fa_copy does, in stream order. With the flag FA_ARGS_STREAM it uses `stream`. Otherwise it uses the handle's stream, and
    /// `stream` must be NULL. It returns before the copy is done, if it can. Pageable host memory may be reused at once. Pinned memory may
    /// be reused when the stream has passed the copy.
    pub fn fa_copy_async(
        handle: fa_handle_t,
        to: *mut c_void,
        from: *const c_void,
        bytes: u64,
        flags: u32,
        stream: *mut c_void,
    ) -> fa_status_t;
    /// The name of a type, such as "f32" or "q8_0"; NULL: no such type.
    pub fn fa_dtype_name(dtype: i32) -> *const c_char;
    /// The unit of a type. Either pointer may be NULL. FA_BIT: 8 keys in 1 byte. Errors: FA_UNSUPPORTED_FIELD (no such type).
    pub fn fa_dtype_unit(dtype: i32, elements: *mut i64, bytes: *mut i64) -> fa_status_t;
    pub fn fa_attention_desc_init(desc: *mut fa_attention_desc_t, struct_size: u32) -> fa_status_t;
    /// Says whether a call would work on this handle: FA_OK, FA_UNSUPPORTED, or the status of what is invalid. Pointers are assumed
    /// aligned to 16 bytes.
    pub fn fa_supports(handle: fa_handle_t, desc: *const fa_attention_desc_t, op: i32) -> fa_status_t;
    /// Says how a call would be computed: backend, device, kernel, tiles and splits, or the reason for a refusal. The status is that of
    /// fa_supports. Text is written for every status, and cut to n bytes with its terminating zero. desc NULL: the backend, and why
    /// others were skipped.
    pub fn fa_explain(handle: fa_handle_t, desc: *const fa_attention_desc_t, op: i32, text: *mut c_char, n: u64) -> fa_status_t;
    /// Gives the answer and status of fa_explain without a handle. They are those of a handle for this backend and device, with
    /// everything else at its default. It may be called from any thread. FA_BACKEND_AUTO: the backend that fa_create would take. A GPU's
    /// context is created for the answer and released, unless the program holds one.
    pub fn fa_backend_supports(
        backend: i32,
        device: i32,
        desc: *const fa_attention_desc_t,
        op: i32,
        text: *mut c_char,
        n: u64,
    ) -> fa_status_t;
    /// Bytes of a workspace with which the call allocates nothing. They suffice for all lengths within the descriptor's maxima, and for
    /// the current parameters. A workspace is aligned to 256 bytes, may hold any bytes, and serves one call at a time.
    /// On CUDA, kernels are loaded when first used, and compiled first if the module has only PTX for the device, which takes seconds.
    /// This function loads those that the call will launch with tensors aligned to 16 bytes, so that the call need not. If loading
    /// fails, the status is that of the call: FA_OUT_OF_MEMORY or FA_DEVICE_ERROR. *bytes is then not written. The other queries compile
    /// no kernel. On Hopper they may load one that is already compiled, to learn how many clusters of it fit on the GPU.
    pub fn fa_workspace_size(handle: fa_handle_t, desc: *const fa_attention_desc_t, op: i32, bytes: *mut u64) -> fa_status_t;
    /// Bytes from a pointer of the call's args to the end of the last element that the call may access there. They follow from
    /// descriptor, sizes and strides alone, so a caller can compare them with the size of its buffer.
    /// args is the op's args struct. Its pointers are not followed and need not be set. field is the pointer's offset in it, such as
    /// offsetof(fa_forward_args_t, k). 0 bytes: the call does not use this pointer. For the pointers that a backward takes from the
    /// forward, ask with FA_OP_FORWARD. It needs no handle.
    /// Errors: those of the call's checks; FA_INVALID_ARGUMENT if field is no pointer to a tensor.
    pub fn fa_extent(desc: *const fa_attention_desc_t, op: i32, args: *const c_void, field: u32, bytes: *mut u64) -> fa_status_t;
    pub fn fa_forward_args_init(args: *mut fa_forward_args_t, struct_size: u32) -> fa_status_t;
    /// Attention without optional operands (desc->operands must be 0).
    pub fn fa_forward(
        handle: fa_handle_t,
        desc: *const fa_attention_desc_t,
        q: *const c_void,
        k: *const c_void,
        v: *const c_void,
        o: *mut c_void,
    ) -> fa_status_t;
    /// Attention with optional operands.
    pub fn fa_forward_ex(handle: fa_handle_t, desc: *const fa_attention_desc_t, args: *const fa_forward_args_t) -> fa_status_t;
    pub fn fa_backward_args_init(args: *mut fa_backward_args_t, struct_size: u32) -> fa_status_t;
    pub fn fa_backward(handle: fa_handle_t, desc: *const fa_attention_desc_t, args: *const fa_backward_args_t) -> fa_status_t;
    pub fn fa_merge_args_init(args: *mut fa_merge_args_t, struct_size: u32) -> fa_status_t;
    pub fn fa_merge(handle: fa_handle_t, desc: *const fa_attention_desc_t, args: *const fa_merge_args_t) -> fa_status_t;
    pub fn fa_rotary_args_init(args: *mut fa_rotary_args_t, struct_size: u32) -> fa_status_t;
    pub fn fa_rotary(handle: fa_handle_t, desc: *const fa_attention_desc_t, args: *const fa_rotary_args_t) -> fa_status_t;
    pub fn fa_append_kv_args_init(args: *mut fa_append_kv_args_t, struct_size: u32) -> fa_status_t;
    pub fn fa_append_kv(handle: fa_handle_t, desc: *const fa_attention_desc_t, args: *const fa_append_kv_args_t) -> fa_status_t;
    /// Copies, converts, sums or clears tensors with strides: gathering and scattering of rows, other layouts, other types. list is read
    /// during the call. flags and stream are those of fa_copy_async. On a GPU, many conversions share a launch and run at the same time.
    /// No conversion may therefore write another one's x or out, which is not checked. In host memory, the calling thread does the work.
    /// If an error is found before work starts, all outputs are untouched.
    /// Errors: FA_INVALID_ARGUMENT, FA_UNSUPPORTED_FIELD, FA_UNSUPPORTED (types that are not converted into each other, a last stride
    /// that is not 1), FA_DEVICE_ERROR.
    pub fn fa_convert(
        handle: fa_handle_t,
        list: *const fa_conversion_t,
        count: i64,
        flags: u32,
        stream: *mut c_void,
    ) -> fa_status_t;
    /// The dropout mask, which is the same on every backend. keep[r · keys + c] is 1 if key j = key + c of row i = row + r is kept, else
    /// 0, for batch_head = b · heads_q + h. It is Philox 4x32-10: key' = first two words of Philox(key = seed, counter = {offset, 0}); w =
    /// word j & 3 of Philox(key', counter = {j >> 2, i, low(batch_head), high(batch_head)}); kept iff w >= floor(p · 2^32).
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
    /// Writes the `heads` slopes of ALiBi. For a power of two they are 2^(−max_bias · h / heads), h = 1 … heads. Otherwise they are
    /// those of the power of two below, then every second one of the power of two above. max_bias: finite, 0 or more; 0: the usual 8.
    pub fn fa_alibi_slopes(heads: i64, max_bias: f32, slopes: *mut f32) -> fa_status_t;
}

macro_rules! zeroed {
    ($($name:ident: $bytes:literal $($size:ident)?;)*) => {$(
        const _: () = assert!(size_of::<$name>() == $bytes);
        impl Default for $name {
            /// All zero but for `struct_size`, where there is one: what the `_INIT` macro of the header gives.
            fn default() -> Self {
                // SAFETY: integers, floats, raw pointers and optional functions; all zero is a value of each.
                #[allow(unused_mut)]
                let mut zero: Self = unsafe { std::mem::zeroed() };
                $(zero.$size = size_of::<Self>() as u32;)?
                zero
            }
        }
    )*};
}
zeroed!(
    fa_create_info_t: 72 struct_size;
    fa_device_info_t: 216 struct_size;
    fa_attention_desc_t: 888 struct_size;
    fa_forward_args_t: 352 struct_size;
    fa_backward_args_t: 280 struct_size;
    fa_merge_args_t: 176 struct_size;
    fa_rotary_args_t: 152 struct_size;
    fa_append_kv_args_t: 288 struct_size;
    fa_conversion_t: 128;
);
