/* libflashattn 0.2: FlashAttention as a C library. This header is the manual.
 *
 *     o = softmax(scale · q kᵀ, masked) v
 *
 * for every query row, computed tile by tile without ever storing the score matrix, on the CPU or on a GPU.
 *
 *     fa_handle_t h;
 *     fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
 *     d.q_dtype = FA_F32;
 *     d.batch = 1; d.heads_q = 8; d.seqlen_q = 128; d.seqlen_k = 128; d.dim_qk = 64;
 *     if (fa_create(&h, NULL) != FA_OK) fputs(fa_last_error(NULL), stderr);
 *     if (fa_forward(h, &d, q, k, v, o) != FA_OK) fputs(fa_last_error(h), stderr);
 *     fa_destroy(h);
 *
 * Three ideas carry the interface.
 *   The descriptor (fa_attention_desc_t) says *what* is computed: types, sizes, strides, masks, which optional operands take part.
 *   It holds no pointer, so it can be stored, hashed, compared and sent. A zero-filled descriptor with q_dtype and sizes is a plain
 *   attention; every further field is zero until it is wanted.
 *   The args (fa_forward_args_t) say *where* the data is. A pointer is given exactly when its FA_OPERAND_ bit is set.
 *   The handle (fa_handle_t) owns backend, device, threads, scratch memory and the last error message.
 *
 * Sized structs. Every struct starts with struct_size (its _INIT macro or _init function sets it): at least its size in 0.2, at most
 * 4096. It only ever grows at its end; zero in a field means what the library did before the field existed. A tail that this library does
 * not know must be zero. A non-zero field whose flag or operand is off is invalid.
 *
 * ABI. A program compiled against 0.x runs with every later 0.y of the same SONAME; structs only grow; an ABI break changes the SONAME.
 * Values of enums and macros never change. What this version declares and no backend has yet is refused with FA_UNSUPPORTED and a
 * sentence; it is marked (reserved) below.
 *
 * Errors. Each call returns a status; fa_last_error(h) is the sentence behind it: which field, its value, what was expected.
 * *Invalid* (the call can never be right) is not *unsupported* (it is right, but this backend lacks it). An error found before
 * work starts leaves every output untouched, and the handle stays usable. The library never prints, exits or aborts.
 * OpenMP's runtime ends the process where the system refuses it a thread; it has threads only where FA_POOL_OPENMP was chosen.
 *
 * Threads. Different handles may be used from different threads; one handle from two threads at once is detected and gives
 * FA_INVALID_STATE. On the CPU a call shares its work with threads of a pool (FA_PARAM_THREAD_POOL), and with as many as it can get:
 * where the system refuses threads, or others have taken them, the calling thread does the work by itself. After fork() a parent's
 * handle gives FA_INVALID_STATE in the child; only fa_destroy is allowed there. A handle made in the child has a pool of the child's.
 * Threads of pools never end, so dlclose() leaves the library in its place; a plugin that has the static one inside must be linked with
 * -Wl,-z,nodelete.
 *
 * The calling thread has back what it came with: rounding and the like (MXCSR, FPCR), exception flags, errno, signal mask, affinity, and
 * the configuration of AMX's tile registers, whose contents come back as zeros: the ABI preserves none across calls. Results depend on none
 * of it: they are computed rounding to nearest, with subnormal numbers and without traps. Callbacks run with the thread's own settings.
 * What the ABI wants of a caller counts here, too: a stack aligned to 16 bytes, string instructions forwards, SME's streaming mode off.
 *
 * Positions. Row i and key j count within their own sequence, after left padding. `off` places the diagonal: row i stands on key
 * i + off. The library runs on 64-bit systems
 only. */
#ifndef FLASHATTN_H
#define FLASHATTN_H

#include <stddef.h>
#include <stdint.h>

#define FA_VERSION_MAJOR 0
#define FA_VERSION_MINOR 2
#define FA_VERSION_PATCH 0
#define FA_VERSION (FA_VERSION_MAJOR * 10000 + FA_VERSION_MINOR * 100 + FA_VERSION_PATCH) /* compare with fa_version() */

#if !defined(FA_STATIC) && defined(__GNUC__)
#define FA_API __attribute__((visibility("default")))
#else
#define FA_API
#endif

#if UINTPTR_MAX != 0xffffffffffffffffu
#error "libflashattn needs 64-bit pointers: its structs are laid out for them"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------- statuses */

typedef int32_t fa_status_t;

enum { /* values never change */
    FA_OK = 0,
    FA_INVALID_ARGUMENT = 10,     /* the call can never be right */
    FA_UNSUPPORTED_FIELD = 11,    /* a flag, enum value or struct tail that this version of the library does not know */
    FA_UNSUPPORTED = 20,          /* right, but this backend has no kernel for it */
    FA_OUT_OF_MEMORY = 30,
    FA_WORKSPACE_TOO_SMALL = 31,
    FA_NO_DEVICE = 40,            /* the backend works, but there is no such device */
    FA_BACKEND_MISSING = 41,      /* its module is not installed */
    FA_BACKEND_INCOMPATIBLE = 42, /* its module or driver is broken, of another version, or not trusted */
    FA_DEVICE_ERROR = 50,         /* the device reported a failure */
    FA_INVALID_STATE = 60,        /* handle used by two threads at once, or in a forked child; call not allowed now */
    FA_TIMEOUT = 70,              /* a peer did not answer in time */
    FA_PEER_FAILED = 71,          /* a peer, or the transport to it, failed */
    FA_PEERS_DISAGREE = 72,       /* peers gave different descriptors */
    FA_INTERNAL = 90              /* a defect of the library: please report it */
};

/* The name of a status, "FA_OK" to "FA_INTERNAL"; "unknown status" for any other value. Never NULL. */
FA_API const char* fa_status_name(fa_status_t status);

/* No text that the library writes into a caller's buffer is longer, its terminating zero included. */
#define FA_TEXT_MAX 2048

/* Version of the library that runs, as major * 10000 + minor * 100 + patch; compare with FA_VERSION. */
FA_API int32_t fa_version(void);

/* ------------------------------------------------------------------------------------------------- handle and backends */

typedef struct fa_handle_s* fa_handle_t;

enum { /* backend */
    FA_BACKEND_AUTO = 0, /* the first usable of CUDA, HIP, CPU; decided once, in fa_create */
    FA_BACKEND_CPU = 1,
    FA_BACKEND_CUDA = 2,
    FA_BACKEND_HIP = 3
};

enum { /* memory: whose pointers a handle takes */
    FA_MEMORY_DEFAULT = 0, /* HOST when the backend is AUTO, DEVICE when it is named */
    FA_MEMORY_HOST = 1,    /* ordinary memory, on every backend; a GPU backend copies it, synchronously */
    FA_MEMORY_DEVICE = 2   /* the device's own memory; on the CPU that is ordinary memory too */
};

enum { /* log level */
    FA_LOG_NONE = 0,
    FA_LOG_ERROR = 1,
    FA_LOG_INFO = 2, /* which backend was chosen and why others were not */
    FA_LOG_DEBUG = 3 /* one line a call */
};

/* Receives one line, without a newline. Called on the thread that made the call; must not call back into the same handle. */
typedef void (*fa_log_fn)(void* user, int32_t level, const char* message);

/* Runs body(arg, 0) … body(arg, n − 1), in any order, on any threads, and returns when all that it began are done: FA_OK if all ran,
 * else a status, which the call then gives (its outputs are undefined). It must not throw and must not be cancelled. A program with its
 * own thread pool gives one in fa_create_info_t. Results never depend on how the work is spread. */
typedef fa_status_t (*fa_parallel_for_fn)(void* user, int64_t n, void (*body)(void* arg, int64_t i), void* arg);

typedef struct fa_create_info_s {
    uint32_t struct_size;
    uint32_t flags;                  /* none yet: 0 */
    int32_t backend;                 /* FA_BACKEND_… */
    int32_t device;                  /* index within the backend; 0 is the first */
    int32_t memory;                  /* FA_MEMORY_… */
    int32_t log_level;               /* FA_LOG_…; 0: FLASHATTN_LOG (error, info, debug) or none */
    void* stream;                    /* native stream that calls use unless FA_ARGS_STREAM says otherwise; it outlives the handle; the
                                        CPU takes NULL */
    const char* backend_dir;         /* absolute folder of backend modules, searched before all others; copied; NULL: none */
    fa_log_fn log;                   /* NULL: lines go to the file of FLASHATTN_LOG_FILE, if that is set */
    void* log_user;
    fa_parallel_for_fn parallel_for; /* CPU backend only; NULL: see FA_PARAM_THREAD_POOL */
    void* parallel_user;
} fa_create_info_t;

#define FA_CREATE_INFO_INIT {sizeof(fa_create_info_t), 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL}
FA_API fa_status_t fa_create_info_init(fa_create_info_t* info, uint32_t struct_size);

/* Makes a handle. info NULL: AUTO with host memory. Never falls back from a backend that was named; AUTO passes over backends
 * that are not usable (the log and fa_explain say why) and ends at the CPU. On failure *handle is NULL and fa_last_error(NULL)
 * has the sentence. Environment, read once through secure_getenv:
 *   FLASHATTN_BACKEND_DIR  an absolute folder of backend modules, searched after info.backend_dir
 *   FLASHATTN_LOG          none, error, info or debug, where info.log_level is 0; any other word is logged once and counts as unset
 *   FLASHATTN_LOG_FILE     the path of a regular file to which lines are appended where info.log is NULL. It is made, for its user
 *                          alone, if it is not there; a link is not followed. If it cannot be opened, lines are lost: no call fails
 *   FLASHATTN_MAX_ISA      the highest instruction set of the CPU backend, as FA_PARAM_MAX_ISA sets it
 *   OMP_STACKSIZE          and its like, with OpenMP's threads: to know whether the system has so much for them
 * Errors: FA_INVALID_ARGUMENT (also for a FLASHATTN_MAX_ISA that names no level), FA_UNSUPPORTED_FIELD, FA_UNSUPPORTED (it names
 * one that this CPU lacks), FA_OUT_OF_MEMORY, FA_NO_DEVICE, FA_BACKEND_MISSING, FA_BACKEND_INCOMPATIBLE, FA_DEVICE_ERROR. */
FA_API fa_status_t fa_create(fa_handle_t* handle, const fa_create_info_t* info);

/* Frees the handle and its scratch memory; memory of fa_malloc must have been freed before. NULL is fine. As with free(), no call on
 * the handle may be going on: nothing guards against that. A call that never returned, because a callback threw or its thread was
 * cancelled, does not go on. */
FA_API fa_status_t fa_destroy(fa_handle_t handle);

/* The sentence behind the last failed call on this handle, "" after one that succeeded; it lives until the next call on the
 * handle. With NULL: the calling thread's last message from a function that had no handle (fa_create, fa_device_count, …). */
FA_API const char* fa_last_error(fa_handle_t handle);

/* Is this backend usable here? FA_OK, or the status that fa_create would give for it. The reason, as a sentence, is written into
 * text (up to n bytes with the terminating zero; NULL or 0: nothing; FA_TEXT_MAX always suffices). Needs no handle. */
FA_API fa_status_t fa_backend_status(int32_t backend, char* text, uint64_t n);

typedef struct fa_device_info_s {
    uint32_t struct_size;
    int32_t backend;
    int32_t device;
    int32_t compute_units; /* CPU: hardware threads this process may use; GPU: multiprocessors */
    uint64_t memory_bytes;
    char name[128];
    char arch[64];         /* CPU: the best instruction set that the library can use on it; GPU: its architecture */
} fa_device_info_t;

/* Devices of a backend; the CPU has one. A backend that is not usable gives its status and a count of 0. */
FA_API fa_status_t fa_device_count(int32_t backend, int32_t* count);
/* Fills info, whose struct_size the caller has set (to sizeof *info); the rules of sized structs hold for it, too. */
FA_API fa_status_t fa_device_info(int32_t backend, int32_t device, fa_device_info_t* info);

/* Parameters and facts of a handle. None of them changes what is computed; threads never change a bit of it. */
enum {
    FA_PARAM_THREADS = 1,   /* CPU threads, the caller's included; 0: as many as OpenMP's maximum and the thread's affinity allow */
    FA_PARAM_MAX_ISA = 2,   /* FA_ISA_…: highest instruction set to use; 0: the best there is. One that the CPU lacks: FA_UNSUPPORTED */
    FA_PARAM_LOG_LEVEL = 3, /* FA_LOG_… */
    FA_PARAM_COUNT_WORK = 4, /* 1: forward calls count work and memory traffic into the FA_STAT_ figures, and are computed by f32 tiles
                                one by one, where others may take faster ways that round otherwise (CPU backend) */
    FA_PARAM_THREAD_POOL = 5, /* FA_POOL_…: whose CPU threads */
    /* read-only facts */
    FA_INFO_BACKEND = 100, /* FA_BACKEND_… that the handle resolved to */
    FA_INFO_DEVICE = 101,
    FA_INFO_MEMORY = 102,  /* FA_MEMORY_HOST or _DEVICE */
    FA_INFO_ISA = 103,     /* FA_ISA_… that runs; 0 on a GPU */
    FA_INFO_STREAM = 104,  /* the native stream of fa_create_info_t, as an integer; 0 on the CPU */
    /* read-only figures of the last counted forward, but for the tiles, which are always known */
    FA_STAT_TILE_ROWS = 200,     /* query rows of a tile (Br) */
    FA_STAT_TILE_KEYS = 201,     /* keys of a tile (Bc) */
    FA_STAT_FLOPS = 202,         /* floating-point operations of the products q·k and p·v */
    FA_STAT_BYTES_READ = 203,    /* bytes moved from memory into tiles */
    FA_STAT_BYTES_WRITTEN = 204, /* … and from tiles to memory */
    FA_STAT_EXTRA_BYTES = 205    /* extra memory of the algorithm besides inputs, outputs and one thread's tiles */
};
enum { /* instruction sets, 1 … 255; a family's levels ascend, with room between them */
    FA_ISA_GENERIC = 1,
    FA_ISA_AVX2 = 16,
    FA_ISA_AVX512 = 20,
    FA_ISA_AVX512_BF16 = 24,
    FA_ISA_AMX = 28,
    FA_ISA_AMX_FP16 = 32,
    FA_ISA_NEON = 64,
    FA_ISA_NEON_BF16 = 68, /* with products of bf16 and of 8-bit integers: FEAT_BF16, FEAT_I8MM */
    FA_ISA_SVE = 72,
    FA_ISA_SVE_BF16 = 76 /* the same, vectors of 256 or 512 bits */
};
/* "avx512_bf16" and the like, as FLASHATTN_MAX_ISA spells it; NULL: no such level. */
FA_API const char* fa_isa_name(int32_t isa);

enum { /* thread pool */
    FA_POOL_AUTO = 0,   /* the caller's if parallel_for was given, else the library's own. Where a program has the machine to itself and
                           makes call after call, OpenMP's threads, which wait without sleeping, begin sooner: on 16 cores up to a
                           fifth; where others want the cores, or there are pauses, they cost tens of times as much */
    FA_POOL_OPENMP = 1, /* a team for each calling thread, whose threads wait as OMP_WAIT_POLICY says; the calling thread alone inside
                           a parallel region and in a child of fork() whose parent had made calls: runtimes hang there, GNU's also
                           after a team of the parent's own, which the library cannot see. They also end the process where the system
                           refuses them a thread: the library starts as many beforehand, and asks for no more than it got, but if
                           others take the last in between, the process ends. A build without OpenMP: FA_UNSUPPORTED */
    FA_POOL_OWN = 2,    /* one for all handles of the process, of at most one thread for each CPU but one, and none of them at work
                           where the calling threads fill the CPUs. They sleep within microseconds after their last work, and a call
                           waits for none that is slow to wake. Safe across fork() */
    FA_POOL_CALLER = 3  /* parallel_for; FA_INVALID_ARGUMENT if none was given */
};

/* Errors: FA_INVALID_ARGUMENT (unknown key, value out of bounds, read-only key), FA_UNSUPPORTED. */
FA_API fa_status_t fa_param_set(fa_handle_t handle, int32_t key, int64_t value);
FA_API fa_status_t fa_param_get(fa_handle_t handle, int32_t key, int64_t* value);

/* Bounds and default of a parameter; any of the three may be NULL. Needs no handle. */
FA_API fa_status_t fa_param_bounds(int32_t key, int64_t* min, int64_t* max, int64_t* initial);
/* Name ("threads") and one-line description of a parameter; NULL for an unknown key. */
FA_API const char* fa_param_name(int32_t key);
FA_API const char* fa_param_doc(int32_t key);

/* Memory that this handle's calls accept, aligned to 256 bytes; fa_copy copies between any two of host and device memory and
 * returns when it is done; fa_synchronize waits for all work of the handle's stream. On the CPU: aligned malloc, memcpy, nothing.
 * Zero bytes give a NULL pointer and FA_OK. */
FA_API fa_status_t fa_malloc(fa_handle_t handle, uint64_t bytes, void** pointer);
FA_API fa_status_t fa_free(fa_handle_t handle, void* pointer);
FA_API fa_status_t fa_copy(fa_handle_t handle, void* to, const void* from, uint64_t bytes);
FA_API fa_status_t fa_synchronize(fa_handle_t handle);
/* fa_copy in the order of a stream: that of the flag FA_ARGS_STREAM, else the handle's, with stream NULL. Returns before the copy is done
 * where it can. Pageable host memory may be used again at once, pinned memory when the stream has come by. */
FA_API fa_status_t fa_copy_async(fa_handle_t handle, void* to, const void* from, uint64_t bytes, uint32_t flags, void* stream);

/* --------------------------------------------------------------------------------------------------------------- types */

/* A type keeps `elements` neighbouring dims of a head in `bytes` bytes: one unit. Strides count units, the innermost is 1, and a head's
 * dims are a multiple of `elements`. Pointers are aligned to the unit's largest scalar. Accumulation is always f32.
 * Byte order: a number of an array (f32, f16, bf16, integers) is stored as the machine stores its own. What holds more than one number,
 * or is defined by its bytes (blocks, 4 bits, FA_BIT), is the same bytes on every machine. */
enum {
    FA_F32 = 1, /* one element a unit, up to FA_E5M2, and FA_I8 */
    FA_F16 = 2,
    FA_BF16 = 3,
    FA_E4M3 = 16, /* 8-bit float, 4 exponent bits, largest 448, no infinity (OCP "fn") */
    FA_E5M2 = 17, /* 8-bit float, 5 exponent bits, largest 57344 */
    FA_E2M1 = 24, /* k and v only; two a byte, the even dim in the low half: 0 .5 1 1.5 2 3 4 6 and their negatives */
    FA_E8M0 = 28, /* factors only: 2^(byte − 127), byte 255 is NaN */
    FA_I8 = 32,   /* k and v only; as with other types, a factor that is not given is 1 */
    FA_I4 = 36,   /* k and v only; two a byte, the even dim in the low half; two's complement */
    FA_U4 = 37,   /* the same, 0 … 15 */
    FA_BIT = 48,  /* masks only: eight a byte, key j in bit j & 7 */
    /* k and v only: ggml's blocks of 32 dims, byte for byte as on little-endian machines: d and m are f16 whose low byte comes first; the
     * number is 256 + ggml's. x of dims 0 … 15 lies in the low halves of qs, of 16 … 31 in the high ones; bit c of qh, bit c & 7 of its
     * byte c >> 3, is bit 4 of dim c's x. */
    FA_Q4_0 = 258, /* 18 bytes: d, qs[16];              d · (x − 8) */
    FA_Q4_1 = 259, /* 20 bytes: d, m, qs[16];           d · x + m */
    FA_Q5_0 = 262, /* 22 bytes: d, qh[4], qs[16];       d · (x − 16) */
    FA_Q5_1 = 263, /* 24 bytes: d, m, qh[4], qs[16];    d · x + m */
    FA_Q8_0 = 264  /* 34 bytes: d, i8 qs[32];           d · x */
};
/* "f32", "q8_0"; NULL: no such type. */
FA_API const char* fa_dtype_name(int32_t dtype);
/* The unit of a type; either pointer may be NULL. FA_BIT: 8 keys in 1 byte. Errors: FA_UNSUPPORTED_FIELD (no such type). */
FA_API fa_status_t fa_dtype_unit(int32_t dtype, int64_t* elements, int64_t* bytes);

/* ------------------------------------------------------------------------------------------------------- the descriptor */

enum { /* flags */
    FA_CAUSAL = 1 << 0,         /* keep keys j <= i + off */
    FA_WINDOW = 1 << 1,         /* window_left and window_right act */
    FA_SCALE_EXPLICIT = 1 << 2, /* scale acts; else 1 / sqrt(dim_qk) */
    FA_DETERMINISTIC = 1 << 3,  /* same bits every time; a forward is always so */
    FA_V_IN_K = 1 << 4          /* v is the dims [0, dim_v) of k, its factors included: v and v_new are NULL, all v fields but dim_v 0.
                                   Forward only */
};

enum { /* precision */
    FA_PRECISION_DEFAULT = 0, /* q as given; P no coarser than q's type */
    FA_PRECISION_NATIVE = 1   /* a permission, no promise: q may be rounded to k's element type (8 bits: with a factor for a row or fewer
                                 dims), P to v's, q, P, the values of block types and values times their factors to bf16, and 8-bit products
                                 over keys summed in a matrix unit's own short accumulator. Study baselines ignore it */
};

enum { /* alignment: where the diagonal lies. Causal, window, chunk and ALiBi need one, because libraries differ */
    FA_ALIGN_UNSET = 0,
    FA_ALIGN_TOP_LEFT = 1,     /* off = 0: row 0 stands on key 0 */
    FA_ALIGN_BOTTOM_RIGHT = 2, /* off = keys − rows of the sequence: its last row stands on its last key. Right for decoding */
    FA_ALIGN_EXPLICIT = 3      /* off = causal_offset[b] (FA_OPERAND_CAUSAL_OFFSET) */
};

enum { /* algorithm */
    FA_ALGORITHM_FLASH = 0,
    FA_ALGORITHM_STANDARD = 1, /* study baseline, f32: all scores of a head in workspace, softmax over them, then times v */
    FA_ALGORITHM_FLASH1 = 2    /* study baseline, f32: keys in the outer loop, o rewritten for every block of keys */
};

enum { /* scores_stage: which scores FA_OPERAND_SCORES writes */
    FA_SCORES_RAW = 0,        /* scale · q·k, masks not applied */
    FA_SCORES_CAPPED = 1,     /* after softcap, masks not applied */
    FA_SCORES_BIASED = 2,     /* after bias, ALiBi and every mask: −inf where a key is removed */
    FA_SCORES_PROBABILITY = 3 /* after softmax (sink included), before dropout: 0 where a key is removed */
};

enum { /* list_space: what an entry of key_list and full_list counts */
    FA_LIST_KEYS = 0, /* keys of the sequence, as masks count them */
    FA_LIST_SLOTS = 1 /* slots of the cache, page · page_size + slot in the page, of key_list alone, list_keys being 1. No position of a key
                         is known: none of causal, window, chunk, ALiBi, bias, mask, ranges, dropout and scores; lengths of keys and a page
                         table have no say, but fa_append_kv takes a page table */
};

enum { /* strided: whose strides are literal. Without its bit a tensor is dense and its strides must all be zero */
    FA_STRIDED_Q = 1 << 0,
    FA_STRIDED_K = 1 << 1,
    FA_STRIDED_V = 1 << 2,
    FA_STRIDED_O = 1 << 3,
    FA_STRIDED_LSE = 1 << 4,
    FA_STRIDED_Q_TAIL = 1 << 5,
    FA_STRIDED_K_TAIL = 1 << 6
};

/* operands: bit k stands for the k-th optional pointer of fa_forward_args_t, counted from lse. 64 bits wide, hence macros: C's
 * enumerators end at 31 bits. */
#define FA_OPERAND_LSE 0x1ull
#define FA_OPERAND_Q_TAIL 0x2ull
#define FA_OPERAND_K_TAIL 0x4ull
#define FA_OPERAND_Q_DESCALE 0x8ull
#define FA_OPERAND_K_DESCALE 0x10ull
#define FA_OPERAND_V_DESCALE 0x20ull
#define FA_OPERAND_K_SHIFT 0x40ull
#define FA_OPERAND_V_SHIFT 0x80ull
#define FA_OPERAND_O_SCALE 0x100ull
#define FA_OPERAND_BIAS 0x200ull
#define FA_OPERAND_BIAS_SCALE 0x400ull
#define FA_OPERAND_MASK 0x800ull
#define FA_OPERAND_KEY_RANGES 0x1000ull
#define FA_OPERAND_KEY_LIST 0x2000ull
#define FA_OPERAND_KEY_LIST_COUNT 0x4000ull
#define FA_OPERAND_FULL_LIST 0x8000ull
#define FA_OPERAND_FULL_LIST_COUNT 0x10000ull
#define FA_OPERAND_ALIBI 0x20000ull
#define FA_OPERAND_SINKS 0x40000ull
#define FA_OPERAND_CAUSAL_OFFSET 0x80000ull
#define FA_OPERAND_CU_SEQLENS_Q 0x100000ull
#define FA_OPERAND_CU_SEQLENS_K 0x200000ull
#define FA_OPERAND_SEQUSED_Q 0x400000ull
#define FA_OPERAND_SEQUSED_K 0x800000ull
#define FA_OPERAND_LEFTPAD_K 0x1000000ull
#define FA_OPERAND_KV_BATCH_IDX 0x2000000ull
#define FA_OPERAND_PAGE_TABLE 0x4000000ull
#define FA_OPERAND_SCORES 0x8000000ull
#define FA_OPERAND_RNG_STATE 0x10000000ull
#define FA_OPERAND_DEVICE_STATUS 0x20000000ull

/* What is computed. For row i and key j of a sequence, in this order:
 *     s = scale · (q_i · k_j)
 *     s = softcap · tanh(s / softcap)          if softcap > 0
 *     s = s + bias_scale_h · bias_ij           not capped; the head's factor is 1 without FA_OPERAND_BIAS_SCALE
 *     s = s − slope · |i + off − j|            ALiBi
 *     key removed, s = −inf                    causal, window, chunk, boolean mask, key ranges and lists, bias of −inf (times any
 *                                              factor), beyond the lengths
 *     p = exp(s) / (Σ_j exp(s) + exp(sink))    the sink is one more logit per head, without a value
 *     p = p · keep / (1 − dropout_p)           LSE is not affected
 *     o = Σ_j p · v_j,   LSE = ln(Σ_j exp(s) + exp(sink))
 * A row with no key left has o = 0 and LSE = −inf (with a sink: o = 0, LSE = sink). NaN in q or in an attended k gives NaN in the row's
 * o and LSE; NaN in an attended v gives NaN in its column of o. So does infinity in v (±inf or NaN there), also by a factor. On the CPU
 * an infinite d or m of a block of k counts as NaN, and so does an infinite factor of a row of q or of a head of k; what other factors
 * and shifts of q and k make infinite is so as if it were stored. (A GPU may multiply sums of products by such factors, or count them as
 * NaN.) Under FA_PRECISION_NATIVE an infinite q may count as NaN. A removed key never shows through k, bias or mask. A v that is not
 * finite may also spoil its column in rows of the same sequence and kv head that do not attend it (0 · NaN), and need not show in those
 * whose p is 0 in f32: in which ones may differ between instruction sets and devices. Bytes outside the valid lengths are never used.
 * Products accumulate in f32, before the scale and the factors of whole rows. A score or sink below −2.35e38 counts as −inf (the key
 * removed, no sink), one above 2.35e38 as +inf (its row is NaN).
 *
 * Example, causal with grouped heads:     d.flags = FA_CAUSAL; d.alignment = FA_ALIGN_BOTTOM_RIGHT; d.heads_q = 32; d.heads_k = 8;
 * Example, sliding window of 1024 keys:   d.flags = FA_CAUSAL | FA_WINDOW; d.window_left = 1023; d.alignment = …;
 * Example, packed sequences:              d.operands = FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
 *                                         d.batch = 3; d.total_q = d.total_k = 60; d.seqlen_q = d.seqlen_k = 30;  (the longest)
 *                                         cu_seqlens = {0, 10, 30, 60}
 * Example, decoding from a paged cache:   d.operands = FA_OPERAND_PAGE_TABLE | FA_OPERAND_SEQUSED_K; d.seqlen_q = 1;
 *                                         d.seqlen_k = 4096; d.page_size = 16; d.num_pages = 9000; page_table [batch][256]
 * Example, (batch, head, row, dim) layout: d.strided = FA_STRIDED_Q; d.q_stride = {H·N·D, D, N·D, 1}
 * Example, one K and V for all batches:   d.strided = FA_STRIDED_K | FA_STRIDED_V; k_stride[0] = v_stride[0] = 0
 * Example, fp8 cache with scales per head: d.k_dtype = FA_E4M3; d.operands = FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
 *                                         d.k_descale_stride = d.v_descale_stride = {0, 0, 1}
 * Example, MXFP8 cache:                   d.k_dtype = FA_E4M3; d.k_descale_dtype = d.v_descale_dtype = FA_E8M0;
 *                                         d.k_descale_block[1] = d.v_descale_block[1] = 32; and strides of four
 * Example, causal, over a q8_0 cache:     d.q_dtype = FA_F32; d.k_dtype = FA_Q8_0; d.batch = 2; d.heads_q = 32; d.heads_k = 8;
 *                                         d.seqlen_q = 1; d.seqlen_k = 256; d.dim_qk = 128;
 *                                         d.flags = FA_CAUSAL; d.alignment = FA_ALIGN_BOTTOM_RIGHT; d.operands = FA_OPERAND_SEQUSED_K;
 *                                         a.q = q; a.k = k_cache; a.v = v_cache; a.o = o; a.seqused_k = lengths;
 * Example, q8_0 keys, q4_0 values:        d.k_dtype = FA_Q8_0; d.v_dtype = FA_Q4_0;     strides, if given, count blocks of 32 dims
 * Example, latent attention (MLA):        d.flags = FA_V_IN_K; d.heads_k = 1; d.dim_qk = 576; d.dim_v = 512;
 * Example, documents in one sequence:     d.operands = FA_OPERAND_KEY_RANGES; d.key_range_stride[2] = 1;
 *                                         key_ranges [rows][2] for all heads: first key and last + 1 of the document of each row, or,
 *                                         if causal, row + 1
 * Example, a BlockMask of FlexAttention:  d.operands = FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT | FA_OPERAND_FULL_LIST |
 *                                         FA_OPERAND_FULL_LIST_COUNT; d.list_rows = d.list_keys = 128; d.list_max = keys / 128;
 *                                         kv_indices, kv_num_blocks, full_kv_indices, full_kv_num_blocks by their strides
 * Example, top-k keys of each row:        d.operands = FA_OPERAND_KEY_LIST; d.list_max = k; d.list_heads = 1;
 *                                         d.list_stride = {rows·k, 0, k, 1}
 * Example, the same as slots of a cache:  and d.list_space = FA_LIST_SLOTS; d.page_size = 64; d.num_pages = 9000;
 *                                         (d.seqlen_k is not read)
 * Example, parts for fa_merge:            d.o_dtype = FA_F32; d.operands = FA_OPERAND_LSE */
typedef struct fa_attention_desc_s {
    uint32_t struct_size;
    uint32_t flags;    /* FA_CAUSAL … */
    uint64_t operands; /* FA_OPERAND_… */
    uint32_t strided;  /* FA_STRIDED_… */
    int32_t alignment; /* FA_ALIGN_…; no effect without causal, window, chunk or ALiBi */

    int32_t q_dtype;         /* FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2; required */
    int32_t k_dtype;         /* those, FA_I8, 4-bit types and blocks; 0: q's */
    int32_t v_dtype;         /* the same; 0: k's, and that alone in a backward (reserved: another) */
    int32_t o_dtype;         /* as q_dtype; 0: q's, bf16 when q is an 8-bit float */
    int32_t q_tail_dtype;    /* FA_F32, FA_F16, FA_BF16; 0: q's */
    int32_t k_tail_dtype;    /* the same */
    int32_t q_descale_dtype; /* FA_F32 (0 too), FA_F16, FA_BF16, FA_E4M3, FA_E8M0 */
    int32_t k_descale_dtype; /* the same, of k_descale and k_shift (which cannot be FA_E8M0) */
    int32_t v_descale_dtype; /* the same, of v_descale and v_shift */
    int32_t bias_dtype;      /* FA_F32 (0 too), FA_F16, FA_BF16 */
    int32_t mask_dtype;      /* 0: a byte for each pair; FA_BIT: key j is bit j & 7 of byte j >> 3, strides count bytes */
    int32_t list_space;      /* FA_LIST_… */

    int32_t algorithm;     /* FA_ALGORITHM_… */
    int32_t precision;     /* FA_PRECISION_… */
    int32_t scores_stage;  /* with FA_OPERAND_SCORES */
    int32_t num_splits;    /* parts that the keys are cut into and computed side by side, up to 65536; 0: chosen from this descriptor
                              alone */
    int32_t reserve_units; /* compute units (fa_device_info_t) of a GPU to leave free, but for two: kernels of one block a unit, as Hopper's
                              to 256 dims, leave them to other streams; all others choose their splits for the rest. No effect on the CPU */
    float scale;           /* with FA_SCALE_EXPLICIT; up to ± 2.35e38 */
    float softcap;         /* > 0 caps scores to ± softcap; 0: off */
    float dropout_p;       /* probability of dropping, in [0, 1) */

    int64_t batch;    /* sequences; batch, seqlen_q, seqlen_k may be 0 */
    int64_t heads_q;  /* query heads */
    int64_t heads_k;  /* divides heads_q: head h reads k head h · heads_k / heads_q; 0: heads_q */
    int64_t heads_v;  /* the same for v; 0: heads_k, and that alone in a backward (reserved: another number) */
    int64_t seqlen_q; /* rows of a sequence; with cu_seqlens_q or seqused_q the longest allowed */
    int64_t seqlen_k; /* keys of a sequence; with cu_seqlens_k, seqused_k or pages the longest allowed */
    int64_t dim_qk;   /* head dimension of q and k, 1 … 1024 */
    int64_t dim_v;    /* head dimension of v and o, 1 … 1024, with FA_V_IN_K at most dim_qk; 0: dim_qk */
    int64_t dim_tail; /* with q_tail or k_tail: the last dims of q and k, which lie there; below dim_qk */

    int64_t total_q;           /* with cu_seqlens_q: rows of the packed q, o */
    int64_t total_k;           /* with cu_seqlens_k: rows of the packed k, v */
    int64_t kv_batch;          /* with kv_batch_idx: sequences in the cache */
    int64_t page_size;         /* with page_table or FA_LIST_SLOTS: keys of a page, >= 1 */
    int64_t num_pages;         /* the same: pages in the cache; ids are 0 … num_pages − 1 */
    int64_t page_table_stride; /* entries between two rows of the table; 0: ceil(seqlen_k / page_size) */

    int64_t window_left;  /* with FA_WINDOW: keys kept to the left of i + off, inclusive; −1: all */
    int64_t window_right; /* and to the right; −1: all; causal acts as 0 */
    int64_t chunk;        /* > 0: row i sees only keys of its own chunk, floor((i + off) / chunk); 0: off */
    int64_t split_size;   /* keys of a split, fixed: a sequence then has the same bits whatever else is in the batch; 0: off, as with
                             num_splits */

    int64_t mask_keys;     /* > 0: the mask has so many columns, for the last keys of a sequence; keys before these are kept; 0: all keys */
    int64_t key_range_max; /* intervals of a row in key_ranges; 0: 1 */
    int64_t list_max;      /* entries stored for a block of rows, in key_list and in full_list */
    int64_t list_rows;     /* rows that share a list, the tensor's own: 1 or a multiple of 16, with which packed sequences begin; 0: 1 */
    int64_t list_keys;     /* keys that an entry names, e · list_keys and those behind it: 1 or a multiple of 16; 0: 1 */
    int64_t list_heads;    /* lists over the heads, a divisor of heads_q: head h has list h · list_heads / heads_q; 0: heads_q */

    int64_t bias_period[2];     /* (sequences, heads) after which the bias repeats: b mod period[0], h mod period[1]; 0: it does not */
    int64_t mask_period[2];     /* the same of the mask */
    int64_t q_descale_block[2]; /* (rows, dims) that share a factor; 0: one row, all dims */
    int64_t k_descale_block[2];
    int64_t v_descale_block[2];

    /* Strides, in units of the type (elements, but for 4-bit and block types): (batch, row, head, unit). The last is 1; 0 elsewhere
     * broadcasts an input; never negative. Along a dimension of one index, or without any, every stride is the same. Dense is
     * [batch][seqlen][heads][dim], packed [total][heads][dim] (no batch stride: give 0), paged [num_pages][page_size][heads][dim] with the
     * page stride in [0]. */
    int64_t q_stride[4];
    int64_t k_stride[4];
    int64_t v_stride[4];
    int64_t o_stride[4];
    int64_t q_tail_stride[4]; /* as q's and k's; 0 between k's heads: they share one tail */
    int64_t k_tail_stride[4];
    /* (batch, query head, row, key), always literal, any value >= 0; rows and keys as the masks count them. */
    int64_t bias_stride[4];
    int64_t mask_stride[4];
    int64_t scores_stride[4];
    int64_t lse_stride[3]; /* (batch, head, row); dense: [batch][heads_q][seqlen_q], packed [heads_q][total_q] (no batch stride) */
    /* (batch, block of rows, head, block of dims), always literal: the factor of a value is
     * descale[b · s0 + floor(row / block[0]) · s1 + head · s2 + floor(dim / block[1]) · s3]. row is the tensor's own (packed row, cache
     * slot, slot in the page), so that a block of packed rows may span two sequences; b is the sequence, the cache's sequence, or the page.
     * q counts query heads. Dims of tails have no factor. */
    int64_t q_descale_stride[4];
    int64_t k_descale_stride[4];
    int64_t v_descale_stride[4];
    int64_t key_range_stride[4];  /* (batch, query head, row, interval), in pairs, always literal; row is the tensor's own (packed: no batch
                                     stride) */
    int64_t list_stride[4];       /* of both lists: (batch, list head, block of rows, entry), always literal; packed: no batch stride */
    int64_t list_count_stride[3]; /* (batch, list head, block of rows) */
    int64_t alibi_batch_stride;   /* slopes[b · stride + head]; 0: one slope per head for all sequences */
} fa_attention_desc_t;

#define FA_ATTENTION_DESC_INIT                                                                                                            \
    {sizeof(fa_attention_desc_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0f, 0.0f, 0.0f, 0, 0, 0, 0, 0, 0, 0,   \
     0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0},            \
     {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0}, {0, 0, 0, 0},           \
     {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0}, 0}
FA_API fa_status_t fa_attention_desc_init(fa_attention_desc_t* desc, uint32_t struct_size);

enum { /* op: which call a question is about */
    FA_OP_FORWARD = 1,
    FA_OP_MERGE = 2,
    FA_OP_APPEND_KV = 3,
    FA_OP_ROTARY = 4,
    FA_OP_BACKWARD = 5
};

/* Would the call work on this handle? FA_OK, FA_UNSUPPORTED, or what is invalid. Bases are assumed aligned to 16 bytes. */
FA_API fa_status_t fa_supports(fa_handle_t handle, const fa_attention_desc_t* desc, int32_t op);
/* The same, with words: backend, device, kernel, tiles, splits, or the reason for a refusal. Text is written whatever the status is, and
 * cut to n bytes with its terminating zero. desc NULL: the backend, and why others were passed over. */
FA_API fa_status_t fa_explain(fa_handle_t handle, const fa_attention_desc_t* desc, int32_t op, char* text, uint64_t n);
/* What fa_explain would answer, with its status, on a handle that is made for this backend and device with everything else at its default.
 * Needs no handle and may be called from any thread. FA_BACKEND_AUTO: the backend that fa_create would take. A GPU's context is made
 * for the answer, and given back, unless the program holds one. */
FA_API fa_status_t fa_backend_supports(int32_t backend, int32_t device, const fa_attention_desc_t* desc, int32_t op, char* text,
                                       uint64_t n);
/* Bytes that make the call free of allocation, enough for all lengths within the descriptor's maxima and for the parameters now
 * set. A workspace is aligned to 256 bytes, may hold anything, and serves one call at a time. */
FA_API fa_status_t fa_workspace_size(fa_handle_t handle, const fa_attention_desc_t* desc, int32_t op, uint64_t* bytes);
/* Bytes from a pointer of the call's args to the end of the last element that the call may touch behind it, from descriptor, sizes and
 * strides alone: a caller that knows its buffer's size compares. args: the op's args struct, whose pointers are not followed and need not
 * be set; field: the pointer's offset in it, offsetof(fa_forward_args_t, k). 0 bytes: the call does not use this pointer. What a
 * backward takes over from the forward is asked for with FA_OP_FORWARD. Needs no handle.
 * Errors: those of the call's checks; FA_INVALID_ARGUMENT where field is no pointer to a tensor. */
FA_API fa_status_t fa_extent(const fa_attention_desc_t* desc, int32_t op, const void* args, uint32_t field, uint64_t* bytes);

/* ------------------------------------------------------------------------------------------------------------- forward */

enum { /* flags of the args: bits 0 … 7 are common to all, a call's own begin at bit 8 */
    FA_ARGS_STREAM = 1 << 0, /* stream acts, which must be of the handle's device (NULL: the legacy default stream); else the handle's */
    /* fa_backward: dq, dk and dv are f32, whatever the inputs' types; all gradients are added to what is there */
    FA_BACKWARD_ACCUMULATE = 1 << 8,
    FA_MERGE_ACCUMULATE = 1 << 8,     /* fa_merge: o (f32) and lse hold a state already: merge the parts into it */
    FA_ROTARY_INTERLEAVED = 1 << 8,   /* fa_rotary, fa_append_kv: pairs are dims (2t, 2t + 1); else halves (t, t + rotary_dim / 2) */
    FA_APPEND_DYNAMIC_SCALE = 1 << 9, /* fa_append_kv: quantise by the largest magnitude of each block of dims and store the de-scale
                                         factor */
    FA_ROTARY_OF_K = 1 << 10          /* fa_rotary: x has k's shape, type, strides and lengths instead of q's */
};

enum { /* bits that a GPU sets in *device_status where a CPU handle would have refused; it took the value as clamped or absent */
    FA_BAD_LENGTH = 1 << 0, /* cu_seqlens, seqused, left padding, more new tokens than a cache has room for */
    FA_BAD_PAGE = 1 << 1,   /* a page id, of pages that are used */
    FA_BAD_INDEX = 1 << 2   /* kv_batch_idx, positions, entries and counts of lists, key ranges that do not ascend */
};

/* Where the data is, in the handle's memory. Arrays of int32 are checked on the CPU (FA_INVALID_ARGUMENT). A pointer is given
 * exactly when its bit is in desc.operands; q, k, v and o always, except that a tensor without elements may be NULL, and v is under
 * FA_V_IN_K. Only element alignment is required. Outputs may not share elements with each other or with inputs; interleaved slices are
 * fine. Structs are read during the call; the memory behind their pointers is used until the stream has passed (CPU and host memory:
 * until the call returns). */
typedef struct fa_forward_args_s {
    uint32_t struct_size;
    uint32_t flags;
    const void* q;
    const void* k;
    const void* v;
    void* o;                        /* rows of a padded q beyond its length are written 0; gaps of a packed one are not touched */
    float* lse;                     /* natural logarithm, scale and sink included; −inf where o has no key or no row */
    const void* q_tail;             /* the last dim_tail dims of q, or of k; q or k then holds the others alone */
    const void* k_tail;
    const void* q_descale;          /* multiply the stored values, which must stay finite in f32, as must scale · q_descale · k_descale ·
                                       log2 e, or rows may be NaN; see the strides */
    const void* k_descale;          /* none with blocks, which hold their own; nor shifts */
    const void* v_descale;
    const void* k_shift;            /* value = stored · descale + shift; of the factors' type, and indexed as they are */
    const void* v_shift;
    const float* o_scale;           /* one value: o is round(o · o_scale); an 8-bit o saturates */
    const void* bias;               /* [batch][heads_q][seqlen_q][seqlen_k] by bias_stride */
    const float* bias_scale;        /* [heads_q], finite; slopes of fa_alibi_slopes make ALiBi of a bias that holds distances */
    const uint8_t* mask;            /* the same as bias by mask_stride; nonzero: attend */
    const int32_t* key_ranges;      /* pairs (begin, end) of keys, end exclusive, by key_range_stride: a key in none of the row's is
                                       removed. A row's ascend and lie apart; they may be empty, or reach beyond the keys */
    const int32_t* key_list;        /* blocks of keys where masks act, in any order, each once in both lists together (not checked: one that
                                       comes again may count twice); −1: none. With a list, a key in none is removed */
    const int32_t* key_list_count;  /* entries to read, up to list_max; without: list_max */
    const int32_t* full_list;       /* blocks where causal, window, chunk, boolean mask and ranges do not act */
    const int32_t* full_list_count;
    const float* alibi_slopes;      /* [heads_q], or [batch][heads_q] by alibi_batch_stride; at most 2.35e38; see fa_alibi_slopes */
    const float* sinks;             /* [heads_q] logits */
    const int32_t* causal_offset;   /* [batch] */
    const int32_t* cu_seqlens_q;    /* [batch + 1], not decreasing, within total_q; sequence b has rows [cu[b], cu[b + 1]) */
    const int32_t* cu_seqlens_k;    /* [batch + 1], within total_k */
    const int32_t* seqused_q;       /* [batch] rows really used, <= seqlen_q or the packed range */
    const int32_t* seqused_k;       /* [batch] keys really used, left padding included, <= seqlen_k or the packed range */
    const int32_t* leftpad_k;       /* [batch] slots to skip before key 0 */
    const int32_t* kv_batch_idx;    /* [batch] sequence of the cache (row of the page table) that sequence b reads */
    const int32_t* page_table;      /* [batch or kv_batch][ceil(seqlen_k / page_size)] page ids; unused entries are never read */
    float* scores;                  /* [batch][heads_q][seqlen_q][seqlen_k] by scores_stride; pairs outside the valid lengths get
                                       0 (raw, capped, probability) or −inf (biased). (reserved: with lists) */
    const uint64_t* rng_state;      /* {seed, offset}, read when the call runs; the two fields below must then be 0 */
    uint32_t* device_status;        /* one word: a GPU looks at the arrays in its memory first, one launch more, and or-s FA_BAD_… bits into
                                       it */
    uint64_t dropout_seed;          /* see fa_dropout_mask; not used when dropout_p is 0 */
    uint64_t dropout_offset;
    void* stream;                   /* with FA_ARGS_STREAM */
    void* workspace;                /* NULL: the handle's own scratch memory, which grows as needed */
    uint64_t workspace_size;        /* bytes; at least what fa_workspace_size gives */
    /* With dropout, of a part of a whole problem: where its first row, key and head lie in the whole's mask. Kept is what that mask keeps
       of row dropout_row + i, key dropout_key + j and batch_head = b * dropout_heads + dropout_head + h; dropout_heads 0: heads_q. */
    int64_t dropout_row;
    int64_t dropout_key;
    int64_t dropout_head;
    int64_t dropout_heads;
} fa_forward_args_t;

#define FA_FORWARD_ARGS_INIT                                                                                                              \
    {sizeof(fa_forward_args_t), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,  \
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, 0, 0, 0, 0, 0}
FA_API fa_status_t fa_forward_args_init(fa_forward_args_t* args, uint32_t struct_size);

/* Attention without optional operands (desc->operands must be 0). */
FA_API fa_status_t fa_forward(fa_handle_t handle, const fa_attention_desc_t* desc, const void* q, const void* k, const void* v,
                              void* o);
/* Attention with everything. */
FA_API fa_status_t fa_forward_ex(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_forward_args_t* args);

/* ------------------------------------------------------------------------------------------------------------ backward */

/* The gradients of a loss with respect to the forward's inputs, from its gradient with respect to o (dout) and, where the loss has
 * a term in it, to LSE (dlse). P is computed again, tile by tile, from q, k and LSE; dropout from its seed and offset.
 *     P_ij  = exp(s_ij − LSE_i)                  s: the final score of the forward, after softcap, bias and masks
 *     dv_j  = Σ_i P̃_ij dout_i                    P̃ = P · keep / (1 − dropout_p)
 *     dS_ij = P_ij (dP_ij − Δ_i + dlse_i)        dP = keep / (1 − dropout_p) · dout vᵀ,  Δ_i = dout_i · o_i
 *     dbias = bias_scale_h dS, dsinks_h = Σ_i exp(sink_h − LSE_i) (dlse_i − Δ_i)
 *     dq_i  = scale Σ_j dS'_ij k_j,  dk_j = scale Σ_i dS'_ij q_i        dS' = dS · (1 − tanh²(scale q·k / softcap)), or dS
 * k and v heads that several query heads share get the sum over them.
 *
 * The descriptor is the forward's and has FA_OPERAND_LSE; FA_OPERAND_SCORES, scores_stage, num_splits and split_size have no effect.
 * `forward` points to the forward's args: its inputs, and o and lse as it wrote them. Its flags, stream, workspace and scores are not
 * used.
 * Types are f32, f16 and bf16, without factors, shifts, tails and o_scale, k's and v's the same, as are their heads; caches (page_table,
 * kv_batch_idx) and the study baselines have no gradient here: all of these are FA_UNSUPPORTED. dout has q's type and o's shape. o_dtype =
 * FA_F32 keeps an f32 o from the forward for this call: Δ of a rounded o spoils dq where P is nearly uniform, since dP − Δ then cancels.
 *
 * A gradient has its input's type (dbias and dsinks: f32) and is rounded once; each is optional: NULL is not computed. dq, dk and dv
 * share no elements with one another or with inputs; rows and keys of padded tensors beyond the valid lengths get 0, gaps of packed ones
 * are not touched. A row whose LSE is −inf (no keys and no sink), below −2.35e38 or +inf has dq = 0 and takes no part, whatever its q
 * and dout hold. NaN and infinite values show in every gradient whose sum they take part in. They may also spoil gradients of other rows
 * and keys of their sequence and kv head (0 · NaN), and so sums over these (dbias, dsinks): of which ones may differ between instruction
 * sets and devices. In gradients of other sequences and kv heads they do not show, nor does what lies outside the valid lengths. The CPU
 * backend gives the same bits every time, for any number of threads; a GPU does under FA_DETERMINISTIC.
 *
 * Strides of the gradients: all zero means those of the forward's tensor (dout: o's, dlse: LSE's, dbias: bias's). dbias sums over a
 * dimension of stride 0 and over repeats (bias_period), and is not written where batch, rows or keys are 0; else its elements must be
 * distinct. Where k or v is broadcast by a stride of 0, dk and dv need strides of their own. */
typedef struct fa_backward_args_s {
    uint32_t struct_size;
    uint32_t flags;
    const fa_forward_args_t* forward;
    const void* dout;
    const float* dlse;       /* NULL: 0 */
    void* dq;
    void* dk;
    void* dv;
    float* dbias;            /* only with FA_OPERAND_BIAS; 0 where a key is removed */
    float* dsinks;           /* [heads_q]; only with FA_OPERAND_SINKS */
    int64_t dout_stride[4];  /* (batch, row, head, element) */
    int64_t dlse_stride[3];  /* (batch, head, row) */
    int64_t dq_stride[4];
    int64_t dk_stride[4];
    int64_t dv_stride[4];
    int64_t dbias_stride[4]; /* (batch, query head, row, key) */
    void* stream;
    void* workspace;
    uint64_t workspace_size;
} fa_backward_args_t;

#define FA_BACKWARD_ARGS_INIT                                                                                                             \
    {sizeof(fa_backward_args_t), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, {0, 0, 0, 0}, {0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0},  \
     {0, 0, 0, 0}, {0, 0, 0, 0}, NULL, NULL, 0}
FA_API fa_status_t fa_backward_args_init(fa_backward_args_t* args, uint32_t struct_size);
FA_API fa_status_t fa_backward(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_backward_args_t* args);

/* --------------------------------------------------------------------------------------------------------------- merge */

/* Merges partial results over disjoint sets of keys into the whole: part p is an f32 o with its LSE, as fa_forward_ex writes them
 * with o_dtype = FA_F32 and FA_OPERAND_LSE. Parts are merged in ascending order; LSE of −inf, below −2.35e38 or +inf means that a part
 * saw no key (its o is ignored). A sink enters once: in one part's forward, or here by FA_OPERAND_SINKS, never both; so does o_scale, which
 * FA_MERGE_ACCUMULATE excludes. Of the descriptor these are read: batch, heads_q, seqlen_q, total_q, dim_v, o_dtype, o and LSE strides, and
 * of the operands FA_OPERAND_LSE, _SINKS, _O_SCALE, _CU_SEQLENS_Q, _SEQUSED_Q; q_dtype only for the default of o_dtype; any other operand
 * bit is allowed and ignored, so the forward's own descriptor serves. */
typedef struct fa_merge_args_s {
    uint32_t struct_size;
    uint32_t flags;
    int64_t parts;               /* >= 0 */
    const float* o_parts;
    const float* lse_parts;
    int64_t o_parts_stride[5];   /* (part, batch, row, head, element); all zero: dense [parts][batch][seqlen_q][heads_q][dim_v] or
                                    [parts][total_q][heads_q][dim_v] (packed: no batch stride) */
    int64_t lse_parts_stride[4]; /* (part, batch, head, row); all zero: dense [parts][batch][heads_q][seqlen_q] or
                                    [parts][heads_q][total_q] */
    void* o;
    float* lse;
    const float* sinks;
    const float* o_scale;
    const int32_t* cu_seqlens_q;
    const int32_t* seqused_q;
    void* stream;
    void* workspace;
    uint64_t workspace_size;
} fa_merge_args_t;

#define FA_MERGE_ARGS_INIT                                                                                                       \
    {sizeof(fa_merge_args_t), 0, 0, NULL, NULL, {0, 0, 0, 0, 0}, {0, 0, 0, 0}, NULL, NULL, NULL, NULL, NULL, NULL,     \
     NULL, NULL, 0}
FA_API fa_status_t fa_merge_args_init(fa_merge_args_t* args, uint32_t struct_size);
FA_API fa_status_t fa_merge(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_merge_args_t* args);

/* -------------------------------------------------------------------------------------------------- rotary and KV cache */

/* Rotary embedding of a tensor that has q's shape, type, strides and lengths: dims [rotary_begin, rotary_begin + rotary_dim) of each head
 * turn by the angle of the row's position, the rest is copied. Position of row i of sequence b: positions[...] if given, else
 * position_offset[b] + i, else i; positions count after left padding. Arithmetic in f32, one rounding. Types f32, f16, bf16.
 * Of the descriptor these are read: batch, heads_q, seqlen_q, total_q, dim_qk, q_dtype, q strides, FA_OPERAND_CU_SEQLENS_Q and
 * _SEQUSED_Q; other operands are ignored. Under FA_ROTARY_OF_K heads_k, seqlen_k, total_k, k_dtype, k strides, FA_OPERAND_CU_SEQLENS_K
 * and _SEQUSED_K stand for them, and FA_OPERAND_PAGE_TABLE and _KV_BATCH_IDX are FA_UNSUPPORTED: fa_append_kv turns what it stores. Rows
 * beyond a sequence's length are not touched. */
typedef struct fa_rotary_args_s {
    uint32_t struct_size;
    uint32_t flags;
    const void* x;
    void* out;                      /* may be x itself, with x's strides */
    int64_t out_stride[4];          /* all zero: x's */
    const float* cos;               /* [max_position][rotary_dim / 2], dense */
    const float* sin;
    int64_t max_position;
    int64_t rotary_begin;           /* dims [rotary_begin, rotary_begin + rotary_dim) turn; 0: the first */
    int64_t rotary_dim;             /* even, 2 … dim_qk − rotary_begin */
    const int32_t* positions;       /* [batch][seqlen_q], packed [total_q]; or NULL */
    const int32_t* position_offset; /* [batch]; or NULL */
    const int32_t* cu_seqlens;      /* cu_seqlens_q and seqused_q of the forward, of k cu_seqlens_k and seqused_k */
    const int32_t* seqused;
    void* stream;
    void* workspace;
    uint64_t workspace_size;
} fa_rotary_args_t;

#define FA_ROTARY_ARGS_INIT                                                                                                               \
    {sizeof(fa_rotary_args_t), 0, NULL, NULL, {0, 0, 0, 0}, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0}
FA_API fa_status_t fa_rotary_args_init(fa_rotary_args_t* args, uint32_t struct_size);
FA_API fa_status_t fa_rotary(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_rotary_args_t* args);

/* Writes new tokens into the cache that the descriptor describes (its k and v strides and types, pages, kv_batch_idx, leftpad_k):
 * token t of sequence b goes to slot seqused_k[b] + t, or to slot positions[...] (−1: skip this token). Slots include left
 * padding and must lie in [0, seqlen_k): nothing outside the sequence's own slots is ever written. seqused_k is the length
 * *before* the call; the caller adds the new tokens afterwards. Without FA_OPERAND_SEQUSED_K and positions, tokens start at the
 * left padding. Two tokens of one call may not share a slot: which of them stays is not defined. k_new is rotated first when cos
 * and sin are given (position = slot − left padding).
 * Under FA_V_IN_K there is no v, and no v_new.
 * k_new and v_new have q_dtype (f32, f16, bf16) and shape [batch][seqlen_new][heads][dim], or packed [total_new][heads][dim]
 * by cu_seqlens_new. A cache of another type is converted; blocks are quantised as ggml's reference does, byte for byte (an f16
 * factor of values beyond its range is infinite), and hold NaN where a value is not finite; others store round((x − shift) / descale)
 * with the given factors (none: 1) and shifts (none: 0), saturated in 8 and 4 bits. Under FA_APPEND_DYNAMIC_SCALE caches of 8 and 4
 * bits (not blocks; k, v or both) get factors of their own, which are written into k_descale and v_descale and so need distinct
 * entries for each slot, head and block of dims, and blocks of one row: descale = largest magnitude in the block / largest value of
 * the type (448, 57344, 6; 127, 7, 15), at least 2^-126 and finite; e8m0 the power of two that is not below, other types the nearest.
 * FA_U4 with shifts: shift = the smallest value, descale = (largest − smallest) / 15. A block of zeros has factor 1; one of 4 bits
 * with a value that is not finite has NaN. With a tail, k_new has all dim_qk dims, of which the last go to k_tail. */
typedef struct fa_append_kv_args_s {
    uint32_t struct_size;
    uint32_t flags;
    const void* k_new;
    const void* v_new;
    int64_t seqlen_new;            /* tokens of a sequence; with cu_seqlens_new or seqused_new the most allowed */
    int64_t total_new;             /* with cu_seqlens_new: rows of the packed k_new, v_new */
    int64_t k_new_stride[4];       /* (batch, row, head, element); all zero: dense */
    int64_t v_new_stride[4];
    void* k;                       /* the cache */
    void* v;
    void* k_tail;                  /* these five by their bits, too */
    void* k_descale;
    void* v_descale;
    void* k_shift;
    void* v_shift;
    const int32_t* cu_seqlens_new; /* [batch + 1] or NULL */
    const int32_t* seqused_new;    /* [batch] tokens really given, or NULL */
    const int32_t* positions;      /* [batch][seqlen_new], packed [total_new], or NULL */
    const int32_t* seqused_k;      /* these four by their bits in desc.operands, as in the forward */
    const int32_t* leftpad_k;
    const int32_t* kv_batch_idx;
    const int32_t* page_table;
    uint32_t* device_status;
    const float* cos;              /* [max_position][rotary_dim / 2] or NULL: no rotation */
    const float* sin;
    int64_t max_position;
    int64_t rotary_begin;          /* as in fa_rotary */
    int64_t rotary_dim;
    void* stream;
    void* workspace;
    uint64_t workspace_size;
} fa_append_kv_args_t;

#define FA_APPEND_KV_ARGS_INIT                                                                                                            \
    {sizeof(fa_append_kv_args_t), 0, NULL, NULL, 0, 0, {0, 0, 0, 0}, {0, 0, 0, 0}, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,  \
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, 0}
FA_API fa_status_t fa_append_kv_args_init(fa_append_kv_args_t* args, uint32_t struct_size);
FA_API fa_status_t fa_append_kv(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_append_kv_args_t* args);

/* ------------------------------------------------------------------------------------------------------------- convert */

enum { /* flags of a conversion */
    FA_CONVERT_ACCUMULATE = 1 << 0 /* out is f32: x, which is f32, f16 or bf16, is added to what is there */
};

/* One tensor into another of the same sizes, which share no element. Elements of equal types are copied bit for bit, whatever the type but
 * FA_BIT; f32, f16 and bf16 are converted into each other, rounded once. Strides count units, are literal, and 0 or more; the last is 1,
 * and no two elements of `out` are the same. An array's element, hence frozen. */
typedef struct fa_conversion_s {
    const void* x;       /* NULL: zeros; x_stride and x_dtype are not read */
    void* out;
    int64_t size[4];     /* elements: (batch, row, head, dim), or whatever is to be stepped along; 1 where there is nothing */
    int64_t x_stride[4];
    int64_t out_stride[4];
    int32_t x_dtype;
    int32_t out_dtype;
    uint64_t flags;      /* FA_CONVERT_… */
} fa_conversion_t;

/* Copies, converts, sums or clears tensors with strides: gathering and scattering of rows, other layouts, other types. list is read during
 * the call; flags, stream: as for fa_copy_async. On a GPU many of the list share a launch, and so run at the same time: what one conversion
 * writes is no other's x or out, which is not checked. In host memory the calling thread moves them. An error that is found before work
 * starts leaves all outputs untouched. Errors: FA_INVALID_ARGUMENT, FA_UNSUPPORTED_FIELD, FA_UNSUPPORTED (types that are not converted
 * into each other, a last stride that is not 1), FA_DEVICE_ERROR. */
FA_API fa_status_t fa_convert(fa_handle_t handle, const fa_conversion_t* list, int64_t count, uint32_t flags, void* stream);

/* ------------------------------------------------------------------------------------------------------------- helpers */

/* The dropout mask, the same on every backend: keep[r · keys + c] is 1 when key (key + c) of row (row + r) is kept, else 0, for
 * batch_head = b · heads_q + h. Philox 4x32-10: key' = first two words of Philox(key = seed, counter = {offset, 0});
 * r = word j & 3 of Philox(key', counter = {j >> 2, i, low(batch_head), high(batch_head)}); kept iff r >= floor(p · 2^32). */
FA_API fa_status_t fa_dropout_mask(float p, uint64_t seed, uint64_t offset, int64_t batch_head, int64_t row, int64_t rows,
                                   int64_t key, int64_t keys, uint8_t* keep);

/* ALiBi slopes: 2^(−max_bias · h / heads), h = 1 … heads, for a power of two; otherwise those of the power of two below, then every
 * second one of the power of two above. max_bias: finite, 0 or more; 0: the usual 8. Writes `heads` values. */
FA_API fa_status_t fa_alibi_slopes(int64_t heads, float max_bias, float* slopes);

#ifdef __cplusplus
}
#endif

#endif
