/* libflashattn 0.2: FlashAttention as a C library. This header is the manual.
 *
 *     o = softmax(scale · q kᵀ, masked) v
 *
 * It is computed for every query row, tile by tile, without storing the score matrix, on the CPU or on a GPU.
 *
 *     fa_handle_t h;
 *     fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
 *     d.q_dtype = FA_F32;
 *     d.batch = 1; d.heads_q = 8; d.seqlen_q = 128; d.seqlen_k = 128; d.dim_qk = 64;
 *     if (fa_create(&h, NULL) != FA_OK) fputs(fa_last_error(NULL), stderr);
 *     if (fa_forward(h, &d, q, k, v, o) != FA_OK) fputs(fa_last_error(h), stderr);
 *     fa_destroy(h);
 *
 * Calls.
 *   fa_create          creates a handle; fa_destroy frees it, and fa_last_error has the message of its last error
 *   fa_forward         computes attention; fa_forward_ex takes optional operands
 *   fa_backward        computes gradients
 *   fa_merge           merges partial results over disjoint sets of keys
 *   fa_append_kv       writes new tokens into a KV cache
 *   fa_rotary          applies rotary embedding
 *   fa_convert         copies, converts, sums or clears tensors with strides
 *   fa_supports        says whether a call would work; fa_explain says how, or why not; fa_backend_supports needs no handle
 *   fa_workspace_size  gives the bytes of workspace that a call needs; fa_extent gives the bytes that it accesses at a pointer
 *   fa_param_set       sets a parameter of a handle; fa_param_get reads parameters and facts
 *   fa_malloc          allocates memory for a handle's calls; see fa_free, fa_copy, fa_copy_async, fa_synchronize
 *   fa_backend_status  says whether a backend is usable; see fa_device_count, fa_device_info
 *   fa_dropout_mask    writes the mask that dropout draws; fa_alibi_slopes writes the usual slopes
 *
 * The interface has three parts.
 *
 * The descriptor (fa_attention_desc_t) says *what* is computed: types, sizes, strides, masks and optional operands. It holds no
 * pointer, so it can be stored, hashed, compared and sent. A descriptor of FA_ATTENTION_DESC_INIT with q_dtype and sizes is plain
 * attention. Every other field is zero until it is needed.
 *
 * The args (fa_forward_args_t) say *where* the data is. An optional pointer must be given exactly when its FA_OPERAND_ bit is set.
 *
 * The handle (fa_handle_t) owns backend, device, threads, scratch memory and the last error message.
 *
 * Sized structs. Every struct except fa_conversion_t starts with struct_size, which its _INIT macro or _init function sets: at least
 * its size in 0.2, at most 4096. Structs only grow, at their end. Zero in a field means what the library did before the field
 * existed. If a struct is longer than this library knows, the bytes that it does not know must be zero. A non-zero field is invalid
 * if its flag or operand is off.
 *
 * ABI. A program compiled against 0.x runs with every later 0.y of the same SONAME. Structs only grow. An ABI break changes the
 * SONAME. Values of enums and macros never change. The library runs only on 64-bit systems. Some features are declared, but no
 * backend has them yet. They are marked (reserved) below and refused with FA_UNSUPPORTED and a message.
 *
 * Errors. Each call returns a status. fa_last_error(h) is the message: which field, its value, and what was expected. *Invalid*
 * means that the call can never be right. *Unsupported* means that it is right, but this backend lacks it. If an error is found
 * before work starts, every output is untouched, and the handle stays usable. The library never prints, exits or aborts. Only with
 * FA_POOL_OPENMP does OpenMP's runtime start threads. It ends the process if the system refuses it one.
 *
 * Threads. Different threads may use different handles. If two threads use one handle at once, this is detected and gives
 * FA_INVALID_STATE. On the CPU, a call shares its work with threads of a pool (FA_PARAM_THREAD_POOL), as many as it can get. If the
 * system refuses threads, or others have taken them, the calling thread does the work by itself. After fork(), a parent's handle
 * gives FA_INVALID_STATE in the child, where only fa_destroy is allowed. A handle created in the child has the child's own pool.
 * Threads of pools never end, so dlclose() does not unload the library. A plugin with the static library inside must be linked with
 * -Wl,-z,nodelete.
 *
 * The calling thread. A call restores rounding and other floating-point control (MXCSR, FPCR), exception flags, errno, signal mask,
 * affinity, and the configuration of AMX's tile registers. The contents of tile registers are zero after a call, because the ABI
 * does not preserve them. Results do not depend on any of these settings: the library computes with rounding to nearest, with
 * subnormal numbers and without traps. Callbacks run with the thread's own settings. A caller must follow the ABI: a stack aligned
 * to 16 bytes, a clear direction flag, and SME's streaming mode off.
 *
 * Positions. Row i and key j count within their own sequence, after left padding. `off` places the diagonal: row i is on key
 * i + off.
 */
#ifndef FLASHATTN_H
#define FLASHATTN_H

#include <stddef.h>
#include <stdint.h>

#define FA_VERSION_MAJOR 0
#define FA_VERSION_MINOR 2
#define FA_VERSION_PATCH 0
#define FA_VERSION (FA_VERSION_MAJOR * 10000 + FA_VERSION_MINOR * 100 + FA_VERSION_PATCH) /* compare with fa_version() */

#if defined(FA_STATIC)
#define FA_API
#elif defined(_WIN32) && defined(FA_BUILD)
#define FA_API __declspec(dllexport)
#elif defined(_WIN32)
#define FA_API __declspec(dllimport)
#elif defined(__GNUC__)
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
    FA_UNSUPPORTED = 20,          /* the call is right, but this backend has no kernel for it */
    FA_OUT_OF_MEMORY = 30,
    FA_WORKSPACE_TOO_SMALL = 31,
    FA_NO_DEVICE = 40,            /* the backend works, but the device does not exist */
    FA_BACKEND_MISSING = 41,      /* the backend's module is not installed */
    FA_BACKEND_INCOMPATIBLE = 42, /* the backend's module or driver is broken, of another version, or not trusted */
    FA_DEVICE_ERROR = 50,         /* the device reported a failure */
    FA_INVALID_STATE = 60,        /* handle used by two threads at once, or in a forked child; call not allowed now */
    FA_TIMEOUT = 70,              /* a peer did not answer in time */
    FA_PEER_FAILED = 71,          /* a peer, or the transport to it, failed */
    FA_PEERS_DISAGREE = 72,       /* peers gave different descriptors */
    FA_INTERNAL = 90              /* a defect of the library: please report it */
};

/* The name of a status, "FA_OK" to "FA_INTERNAL"; "unknown status" for any other value. Never NULL. */
FA_API const char* fa_status_name(fa_status_t status);

/* The longest text that the library writes into a caller's buffer, its terminating zero included. */
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

enum { /* memory: which pointers a handle takes */
    FA_MEMORY_DEFAULT = 0, /* HOST if the backend is AUTO, DEVICE if it is named */
    FA_MEMORY_HOST = 1,    /* ordinary memory, on every backend; a GPU backend copies it, synchronously */
    FA_MEMORY_DEVICE = 2   /* the device's own memory; on the CPU that is ordinary memory, too */
};

enum { /* log level */
    FA_LOG_NONE = 0,
    FA_LOG_ERROR = 1,
    FA_LOG_INFO = 2, /* which backend was chosen and why others were not */
    FA_LOG_DEBUG = 3 /* one line a call */
};

/* Receives one line, without a newline. It is called on the thread that made the call, and must not call back into the same
 * handle. */
typedef void (*fa_log_fn)(void* user, int32_t level, const char* message);

/* Runs body(arg, 0) … body(arg, n − 1), in any order, on any threads. It returns when all that it began are done: FA_OK if all ran,
 * otherwise another status. If it returns another status, so does the library's call, and its outputs are undefined. It must not throw
 * and must not be cancelled. A program with its own thread pool gives one in fa_create_info_t. Results never depend on how the work is
 * distributed. */
typedef fa_status_t (*fa_parallel_for_fn)(void* user, int64_t n, void (*body)(void* arg, int64_t i), void* arg);

typedef struct fa_create_info_s {
    uint32_t struct_size;
    uint32_t flags;                  /* none yet: 0 */
    int32_t backend;                 /* FA_BACKEND_… */
    int32_t device;                  /* index within the backend; 0 is the first */
    int32_t memory;                  /* FA_MEMORY_… */
    int32_t log_level;               /* FA_LOG_…; 0: FLASHATTN_LOG (error, info, debug) or none */
    void* stream;                    /* GPU: native stream of calls without FA_ARGS_STREAM; must outlive the handle; NULL: the legacy
                                        default stream. FA_BACKEND_AUTO, CPU: must be NULL */
    const char* backend_dir;         /* absolute folder of backend modules, searched before all others; copied; NULL: none */
    fa_log_fn log;                   /* NULL: lines go to the file of FLASHATTN_LOG_FILE, if that is set */
    void* log_user;                  /* first argument of log */
    fa_parallel_for_fn parallel_for; /* CPU backend only; NULL: see FA_PARAM_THREAD_POOL */
    void* parallel_user;             /* first argument of parallel_for */
} fa_create_info_t;

#define FA_CREATE_INFO_INIT {sizeof(fa_create_info_t), 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL}
FA_API fa_status_t fa_create_info_init(fa_create_info_t* info, uint32_t struct_size);

/* Creates a handle. info NULL: AUTO with host memory. A named backend is never replaced by another. AUTO skips backends that are
 * not usable (the log and fa_explain say why) and ends at the CPU. On failure *handle is NULL, and fa_last_error(NULL) has the
 * message.
 * These environment variables are read once, through secure_getenv:
 *   FLASHATTN_BACKEND_DIR  an absolute folder of backend modules, searched after info.backend_dir
 *   FLASHATTN_LOG          none, error, info or debug, if info.log_level is 0; any other word is logged once and counts as unset
 *   FLASHATTN_LOG_FILE     the path of a regular file to which lines are appended if info.log is NULL. If it does not exist, it is
 *                          created for its user only. A link is not followed. If it cannot be opened, lines are lost, and no call fails
 *   FLASHATTN_MAX_ISA      the highest instruction set of the CPU backend, as FA_PARAM_MAX_ISA sets it
 *   FLASHATTN_MAX_SHARED   for tests and measurements: limits the shared memory of a block on a GPU to this many KB, 64 or more. Kernels
 *                          are chosen as on a GPU that has no more. Below 227, Hopper's own kernels are not used
 *   OMP_STACKSIZE          and GOMP_STACKSIZE, KMP_STACKSIZE: the stack size of OpenMP's threads. With FA_POOL_OPENMP, the library
 *                          first tests how many threads with this stack the system grants
 * Errors: FA_INVALID_ARGUMENT (also for a FLASHATTN_MAX_ISA that names no level, and a FLASHATTN_MAX_SHARED that is no such number),
 * FA_UNSUPPORTED_FIELD, FA_UNSUPPORTED (FLASHATTN_MAX_ISA names a level that this CPU lacks), FA_OUT_OF_MEMORY, FA_NO_DEVICE,
 * FA_BACKEND_MISSING, FA_BACKEND_INCOMPATIBLE, FA_DEVICE_ERROR. */
FA_API fa_status_t fa_create(fa_handle_t* handle, const fa_create_info_t* info);

/* Frees the handle and its scratch memory. Memory of fa_malloc must have been freed before. NULL is allowed. As with free(), no
 * call on the handle may be running, and nothing checks this. A call that never returned, because a callback threw or its thread
 * was cancelled, is not running. */
FA_API fa_status_t fa_destroy(fa_handle_t handle);

/* The message of the last failed call on this handle, "" after a call that succeeded. It is valid until the next call on the
 * handle. With NULL, it is the calling thread's last message from a function without a handle (fa_create, fa_device_count, …). */
FA_API const char* fa_last_error(fa_handle_t handle);

/* Says whether a backend is usable here: FA_OK, or the status that fa_create would give for it. The reason is written into text, up
 * to n bytes with the terminating zero. With NULL or 0, nothing is written. FA_TEXT_MAX bytes always suffice. It needs no
 * handle. */
FA_API fa_status_t fa_backend_status(int32_t backend, char* text, uint64_t n);

typedef struct fa_device_info_s {
    uint32_t struct_size;
    int32_t backend;       /* FA_BACKEND_… */
    int32_t device;        /* index within the backend */
    int32_t compute_units; /* CPU: hardware threads that this process may use; GPU: multiprocessors, as the GPU's runtime counts them */
    uint64_t memory_bytes; /* memory of the device */
    char name[128];
    char arch[64];         /* CPU: the best instruction set that the library can use on it; GPU: its architecture */
} fa_device_info_t;

/* The number of devices of a backend; the CPU has one. If a backend is not usable, its status is returned, and the count is 0. */
FA_API fa_status_t fa_device_count(int32_t backend, int32_t* count);
/* Describes a device. The caller has set info->struct_size (to sizeof *info). The rules of sized structs apply to it, too. */
FA_API fa_status_t fa_device_info(int32_t backend, int32_t device, fa_device_info_t* info);

/* Parameters and facts of a handle. None of them changes what is computed. FA_PARAM_MAX_ISA and FA_PARAM_COUNT_WORK can change its
 * rounding. The number of threads and the pool change no bit. */
enum {
    FA_PARAM_THREADS = 1,     /* CPU threads, including the caller's, with any pool; 0: the number of CPUs that the calling
                                 thread may use and, except for FA_POOL_CALLER, at most OpenMP's maximum (OMP_NUM_THREADS,
                                 omp_set_num_threads) */
    FA_PARAM_MAX_ISA = 2,     /* FA_ISA_…: highest instruction set to use; 0: the best one. If the CPU lacks it: FA_UNSUPPORTED */
    FA_PARAM_LOG_LEVEL = 3,   /* FA_LOG_… */
    FA_PARAM_COUNT_WORK = 4,  /* 1: forward calls count work and memory traffic into the FA_STAT_ figures (CPU backend). Counted
                                 calls compute one f32 tile at a time. With 0, the same call may use a faster method that rounds
                                 differently */
    FA_PARAM_THREAD_POOL = 5, /* FA_POOL_…: the pool of CPU threads */
    /* read-only facts */
    FA_INFO_BACKEND = 100, /* FA_BACKEND_… that the handle resolved to */
    FA_INFO_DEVICE = 101,  /* index of the device */
    FA_INFO_MEMORY = 102,  /* FA_MEMORY_HOST or _DEVICE */
    FA_INFO_ISA = 103,     /* FA_ISA_… in use; 0 on a GPU */
    FA_INFO_STREAM = 104,  /* the native stream of fa_create_info_t, as an integer; 0 on the CPU */
    /* read-only figures of the last counted forward. FA_STAT_TILE_ROWS and _KEYS do not need FA_PARAM_COUNT_WORK */
    FA_STAT_TILE_ROWS = 200,     /* query rows of a tile (Br) */
    FA_STAT_TILE_KEYS = 201,     /* keys of a tile (Bc) */
    FA_STAT_FLOPS = 202,         /* floating-point operations of the products q·k and p·v */
    FA_STAT_BYTES_READ = 203,    /* bytes moved from memory into tiles */
    FA_STAT_BYTES_WRITTEN = 204, /* bytes moved from tiles to memory */
    FA_STAT_EXTRA_BYTES = 205    /* extra memory of the algorithm, in addition to inputs, outputs and one thread's tiles */
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
    FA_ISA_SVE_BF16 = 76,  /* SVE with the same products; vectors of 256 or 512 bits */
    FA_ISA_RVV = 112       /* RISC-V's V, version 1.0: vectors of 128 bits or more, of which 128, 256 or 512 are used */
};
/* The name of a level, such as "avx512_bf16", as FLASHATTN_MAX_ISA spells it; NULL: no such level. */
FA_API const char* fa_isa_name(int32_t isa);

enum { /* thread pool */
    FA_POOL_AUTO = 0,   /* FA_POOL_CALLER if parallel_for was given, else FA_POOL_OWN */
    FA_POOL_OPENMP = 1, /* an OpenMP team for each calling thread; its threads wait as OMP_WAIT_POLICY says.
                           Speed: unless this policy is passive, they wait without sleeping. If a program has the machine to itself and
                           makes call after call, they begin sooner: on 16 cores, calls take up to a fifth less time. If other threads
                           need the cores, calls take tens of times as long. With pauses between calls, they use tens of times as much
                           processor time.
                           Only the calling thread computes inside a parallel region. The same holds in a child of fork() if the
                           parent had made calls, because runtimes hang there. GNU's runtime also hangs in the child if the parent used
                           OpenMP by itself, which the library cannot see.
                           A runtime ends the process if the system refuses it a thread. The library therefore tests first how many
                           threads the system grants, and requests no more from OpenMP. If other programs take the last ones in
                           between, the process ends. A build without OpenMP: FA_UNSUPPORTED */
    FA_POOL_OWN = 2,    /* one pool for all handles of the process. It has at most one thread less than there are CPUs. None of them
                           works if the calling threads fill the CPUs. They sleep within microseconds after their last work, and a call
                           does not wait for a thread that is slow to wake. Safe across fork() */
    FA_POOL_CALLER = 3  /* parallel_for; FA_INVALID_ARGUMENT if none was given */
};

/* Sets a parameter; fa_param_get reads a parameter, fact or figure. Errors: FA_INVALID_ARGUMENT (unknown key, value out of bounds,
 * read-only key), FA_UNSUPPORTED. */
FA_API fa_status_t fa_param_set(fa_handle_t handle, int32_t key, int64_t value);
FA_API fa_status_t fa_param_get(fa_handle_t handle, int32_t key, int64_t* value);

/* Bounds and default of a parameter. Any of the three pointers may be NULL. It needs no handle. */
FA_API fa_status_t fa_param_bounds(int32_t key, int64_t* min, int64_t* max, int64_t* initial);
/* Name ("threads") and one-line description of a parameter; NULL for an unknown key. */
FA_API const char* fa_param_name(int32_t key);
FA_API const char* fa_param_doc(int32_t key);

/* Memory that this handle's calls accept, aligned to 256 bytes. Zero bytes give a NULL pointer and FA_OK. fa_copy copies between
 * any two of host and device memory, and returns when it is done. fa_synchronize waits for all work of the handle's stream. On the
 * CPU these are an aligned malloc, memcpy, and nothing. */
FA_API fa_status_t fa_malloc(fa_handle_t handle, uint64_t bytes, void** pointer);
FA_API fa_status_t fa_free(fa_handle_t handle, void* pointer);
FA_API fa_status_t fa_copy(fa_handle_t handle, void* to, const void* from, uint64_t bytes);
FA_API fa_status_t fa_synchronize(fa_handle_t handle);
/* Copies as fa_copy does, in stream order. With the flag FA_ARGS_STREAM it uses `stream`. Otherwise it uses the handle's stream, and
 * `stream` must be NULL. It returns before the copy is done, if it can. Pageable host memory may be reused at once. Pinned memory may
 * be reused when the stream has passed the copy. */
FA_API fa_status_t fa_copy_async(fa_handle_t handle, void* to, const void* from, uint64_t bytes, uint32_t flags, void* stream);

/* --------------------------------------------------------------------------------------------------------------- types */

/* Element types. A type keeps `elements` neighbouring dims of a head in `bytes` bytes: one unit. Strides count units. The innermost
 * stride is 1, and the number of dims of a head is a multiple of `elements`. Example: a head of 128 dims of FA_Q8_0 is 4 units, 136
 * bytes. Pointers are aligned to the unit's largest scalar. Accumulation is f32. Exceptions: a GPU's matrix unit may sum 8-bit q · k,
 * and under FA_PRECISION_NATIVE 8-bit P · v, in its short accumulator, which keeps 14 bits of the largest term. P is the matrix of
 * probabilities, the p of "What is computed" below.
 * Byte order: numbers of an array (f32, f16, bf16, integers) have the machine's byte order. Units with more than one number, or
 * defined by their bytes (blocks, 4 bits, FA_BIT), have the same bytes on every machine. */
enum {
    FA_F32 = 1,   /* one element a unit, as in all types up to FA_E5M2, and in FA_I8 */
    FA_F16 = 2,
    FA_BF16 = 3,
    FA_E4M3 = 16, /* 8-bit float, 4 exponent bits, largest 448, no infinity (OCP "fn") */
    FA_E5M2 = 17, /* 8-bit float, 5 exponent bits, largest 57344 */
    FA_E2M1 = 24, /* k and v only; two a byte, the even dim in the low half: 0 .5 1 1.5 2 3 4 6 and their negatives */
    FA_E8M0 = 28, /* scales only: 2^(byte − 127), byte 255 is NaN */
    FA_I8 = 32,   /* k and v only; as with other types, a scale that is not given is 1 */
    FA_I4 = 36,   /* k and v only; two a byte, the even dim in the low half; two's complement */
    FA_U4 = 37,   /* the same, 0 … 15 */
    FA_BIT = 48,  /* masks only: eight a byte, key j in bit j & 7 */
    /* k and v only: ggml's blocks of 32 dims, byte for byte as on little-endian machines. d and m are f16 with the low byte first.
     * Each constant is 256 + ggml's number. The low halves of qs hold x of dims 0 … 15, the high halves x of dims 16 … 31. Bit c of qh,
     * which is bit c & 7 of its byte c >> 3, is bit 4 of x of dim c. */
    FA_Q4_0 = 258, /* 18 bytes: d, qs[16];              d · (x − 8) */
    FA_Q4_1 = 259, /* 20 bytes: d, m, qs[16];           d · x + m */
    FA_Q5_0 = 262, /* 22 bytes: d, qh[4], qs[16];       d · (x − 16) */
    FA_Q5_1 = 263, /* 24 bytes: d, m, qh[4], qs[16];    d · x + m */
    FA_Q8_0 = 264  /* 34 bytes: d, i8 qs[32];           d · x */
};
/* The name of a type, such as "f32" or "q8_0"; NULL: no such type. */
FA_API const char* fa_dtype_name(int32_t dtype);
/* The unit of a type. Either pointer may be NULL. FA_BIT: 8 keys in 1 byte. Errors: FA_UNSUPPORTED_FIELD (no such type). */
FA_API fa_status_t fa_dtype_unit(int32_t dtype, int64_t* elements, int64_t* bytes);

/* ------------------------------------------------------------------------------------------------------- the descriptor */

enum { /* flags */
    FA_CAUSAL = 1 << 0,         /* keep keys j <= i + off */
    FA_WINDOW = 1 << 1,         /* window_left and window_right apply */
    FA_SCALE_EXPLICIT = 1 << 2, /* scale applies; else 1 / sqrt(dim_qk) */
    FA_DETERMINISTIC = 1 << 3,  /* same bits every time; a forward always has them */
    FA_V_IN_K = 1 << 4          /* v is the dims [0, dim_v) of k, with its scales: v and v_new are NULL, and all v fields except
                                   dim_v are 0. Forward only */
};

enum { /* precision */
    FA_PRECISION_DEFAULT = 0, /* q as given; P no coarser than q's type */
    FA_PRECISION_NATIVE = 1   /* permits rounding, but does not promise it. q may be rounded to k's element type (to 8 bits: with a
                                 scale per row, or per block of its dims), and P to v's. q, P, values of block types and scaled
                                 values may be rounded to bf16. 8-bit P · v may be summed over keys in a matrix unit's short
                                 accumulator. Study baselines ignore it */
};

enum { /* alignment: where the diagonal is. Causal, window, chunk and ALiBi need one, because libraries differ */
    FA_ALIGN_UNSET = 0,
    FA_ALIGN_TOP_LEFT = 1,     /* off = 0: row 0 is on key 0 */
    FA_ALIGN_BOTTOM_RIGHT = 2, /* off = keys − rows of the sequence: its last row is on its last key. Use it for decoding */
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
    FA_SCORES_BIASED = 2,     /* after bias, ALiBi and every mask: −inf if a key is removed */
    FA_SCORES_PROBABILITY = 3 /* after softmax (sink included), before dropout: 0 if a key is removed */
};

enum { /* list_space: what an entry of key_list and full_list counts */
    FA_LIST_KEYS = 0, /* keys of the sequence, as masks count them */
    FA_LIST_SLOTS = 1 /* slots of the cache: page · page_size + slot in the page. Only in key_list, with list_keys 1. Keys then have
                         no position, so causal, window, chunk, ALiBi, bias, mask, ranges, dropout and scores are not allowed.
                         Lengths of keys and a page table are ignored, but fa_append_kv uses a page table */
};

enum { /* strided: tensors with literal strides, which are used as given, 0 included. Without its bit a tensor is dense, and its strides
          must all be zero */
    FA_STRIDED_Q = 1 << 0,
    FA_STRIDED_K = 1 << 1,
    FA_STRIDED_V = 1 << 2,
    FA_STRIDED_O = 1 << 3,
    FA_STRIDED_LSE = 1 << 4,
    FA_STRIDED_Q_TAIL = 1 << 5,
    FA_STRIDED_K_TAIL = 1 << 6
};

/* operands: bit k stands for the k-th optional pointer of fa_forward_args_t, counted from lse. They are macros because they have 64
 * bits, and C's enumerators end at 31 bits. */
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
 *     s = s + bias_scale_h · bias_ij           not capped; bias_scale_h is 1 without FA_OPERAND_BIAS_SCALE
 *     s = s − slope · |i + off − j|            ALiBi
 *     key removed, s = −inf                    causal, window, chunk, boolean mask, key ranges and lists,
 *                                              bias of −inf (with any bias_scale), beyond the lengths
 *     p = exp(s) / (Σ_j exp(s) + exp(sink))    the sink is one more logit per head, without a value
 *     p = p · keep / (1 − dropout_p)           LSE is not affected
 *     o = Σ_j p · v_j,   LSE = ln(Σ_j exp(s) + exp(sink))
 * A row with no key left has o = 0 and LSE = −inf (with a sink: o = 0, LSE = sink). Products accumulate in f32. Then `scale` and
 * the scales of whole rows are applied to the sums. A score or sink below −2.35e38 counts as −inf (the key is removed, or there is
 * no sink). One above 2.35e38 counts as +inf (its row is NaN). Bytes outside the valid lengths are never used.
 *
 * NaN and infinity. NaN in q or in an attended k gives NaN in the row's o and LSE. NaN in an attended v gives NaN in its column of
 * o. Infinity in v, also by a scale, gives ±inf or NaN there. A removed key never shows through k, bias or mask.
 * An infinite d or m of a block of k counts as NaN, and so does an infinite scale of a row of q or of a head of k.
 * Values of q and k that other scales and shifts make infinite count as if they were stored so; on a GPU, they may count as NaN.
 * Under FA_PRECISION_NATIVE, an infinite q may count as NaN.
 * A v that is not finite may also spoil its column in rows of the same sequence and kv head that do not attend it (0 · NaN). It
 * need not show in rows with a p that is 0 in f32. Which rows these are may differ between instruction sets and devices.
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
 *                                         d.k_descale_block[1] = d.v_descale_block[1] = 32; and all four numbers of
 *                                         d.k_descale_stride and d.v_descale_stride
 * Example, causal, over a q8_0 cache:     d.q_dtype = FA_F32; d.k_dtype = FA_Q8_0; d.batch = 2; d.heads_q = 32; d.heads_k = 8;
 *                                         d.seqlen_q = 1; d.seqlen_k = 256; d.dim_qk = 128;
 *                                         d.flags = FA_CAUSAL; d.alignment = FA_ALIGN_BOTTOM_RIGHT; d.operands = FA_OPERAND_SEQUSED_K;
 *                                         a.q = q; a.k = k_cache; a.v = v_cache; a.o = o; a.seqused_k = lengths;
 * Example, q8_0 keys, q4_0 values:        d.k_dtype = FA_Q8_0; d.v_dtype = FA_Q4_0;     strides, if given, count blocks of 32 dims
 * Example, latent attention (MLA):        d.flags = FA_V_IN_K; d.heads_k = 1; d.dim_qk = 576; d.dim_v = 512;
 * Example, documents in one sequence:     d.operands = FA_OPERAND_KEY_RANGES; d.key_range_stride[2] = 1;
 *                                         key_ranges [rows][2], for all heads: first key of the document of a row, and its last + 1
 *                                         (if causal: row + 1)
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
    int32_t v_dtype;         /* as k_dtype; 0: k's. In a backward it must be k's (another type: reserved) */
    int32_t o_dtype;         /* as q_dtype; 0: q's, or bf16 if q is an 8-bit float */
    int32_t q_tail_dtype;    /* FA_F32, FA_F16, FA_BF16; 0: q's */
    int32_t k_tail_dtype;    /* the same */
    int32_t q_descale_dtype; /* FA_F32 (also by 0), FA_F16, FA_BF16, FA_E4M3, FA_E8M0 */
    int32_t k_descale_dtype; /* the same, for k_descale and k_shift (which cannot be FA_E8M0) */
    int32_t v_descale_dtype; /* the same, for v_descale and v_shift */
    int32_t bias_dtype;      /* FA_F32 (also by 0), FA_F16, FA_BF16 */
    int32_t mask_dtype;      /* 0: a byte for each pair; FA_BIT: key j is bit j & 7 of byte j >> 3, and strides count bytes */
    int32_t list_space;      /* FA_LIST_… */

    int32_t algorithm;     /* FA_ALGORITHM_… */
    int32_t precision;     /* FA_PRECISION_… */
    int32_t scores_stage;  /* FA_SCORES_…, with FA_OPERAND_SCORES */
    int32_t num_splits;    /* parts of the keys that are computed in parallel, up to 65536; 0: chosen from descriptor and device */
    int32_t reserve_units; /* GPU: number of SMs (compute_units of fa_device_info_t) left free for other streams; at least two are
                              used. Kernels with one block per SM, such as Hopper's up to 256 dims, leave them free. All others
                              choose their splits for the remaining SMs. No effect on the CPU */
    float scale;           /* with FA_SCALE_EXPLICIT: multiplies q·k; up to ± 2.35e38 */
    float softcap;         /* > 0: caps scores to ± softcap; 0: off */
    float dropout_p;       /* probability of dropping, in [0, 1) */

    int64_t batch;    /* sequences; batch, seqlen_q, seqlen_k may be 0 */
    int64_t heads_q;  /* query heads */
    int64_t heads_k;  /* divides heads_q: head h reads k head h · heads_k / heads_q; 0: heads_q */
    int64_t heads_v;  /* the same for v; 0: heads_k. In a backward it must be heads_k (another number: reserved) */
    int64_t seqlen_q; /* rows of a sequence; with cu_seqlens_q or seqused_q the longest allowed */
    int64_t seqlen_k; /* keys of a sequence; with cu_seqlens_k, seqused_k or pages the longest allowed */
    int64_t dim_qk;   /* head dimension of q and k, 1 … 1024 */
    int64_t dim_v;    /* head dimension of v and o, 1 … 1024, with FA_V_IN_K at most dim_qk; 0: dim_qk */
    int64_t dim_tail; /* with q_tail or k_tail: number of the last dims of q and k that are in the tail; below dim_qk */

    int64_t total_q;           /* with cu_seqlens_q: rows of the packed q, o */
    int64_t total_k;           /* with cu_seqlens_k: rows of the packed k, v */
    int64_t kv_batch;          /* with kv_batch_idx: sequences in the cache */
    int64_t page_size;         /* with page_table or FA_LIST_SLOTS: keys of a page, >= 1 */
    int64_t num_pages;         /* with the same: pages in the cache; ids are 0 … num_pages − 1 */
    int64_t page_table_stride; /* entries between two rows of the table; 0: ceil(seqlen_k / page_size) */

    int64_t window_left;  /* with FA_WINDOW: keys kept to the left of i + off, inclusive; −1: all */
    int64_t window_right; /* with FA_WINDOW: keys kept to the right of i + off, inclusive; −1: all. With FA_CAUSAL it acts as 0 */
    int64_t chunk;        /* > 0: row i sees only keys of its own chunk, floor((i + off) / chunk); 0: off */
    int64_t split_size;   /* fixed number of keys of a split: the bits of a sequence then do not depend on the rest of the batch; 0:
                             off. Must be 0 if num_splits is set */

    int64_t mask_keys;     /* number of columns of the mask, for the last keys of a sequence; earlier keys are kept; 0: all keys */
    int64_t key_range_max; /* intervals of a row in key_ranges; 0: 1 */
    int64_t list_max;      /* entries stored for a block of rows, in key_list and in full_list */
    int64_t list_rows;     /* rows of the tensor that share a list: 1 or a multiple of 16; packed sequences begin at multiples of
                              it; 0: 1 */
    int64_t list_keys;     /* keys that an entry e names, from e · list_keys on: 1 or a multiple of 16; 0: 1 */
    int64_t list_heads;    /* number of lists over the heads, a divisor of heads_q: head h has list h · list_heads / heads_q; 0:
                              heads_q */

    int64_t bias_period[2];     /* (sequences, heads) after which the bias repeats: b mod period[0], h mod period[1]; 0: no
                                   repeat */
    int64_t mask_period[2];     /* the same for the mask */
    int64_t q_descale_block[2]; /* (rows, dims) that share a scale; 0: one row, all dims */
    int64_t k_descale_block[2]; /* the same for k_descale and k_shift */
    int64_t v_descale_block[2]; /* the same for v_descale and v_shift */

    /* Strides, in units of the type (elements, except for 4-bit and block types): (batch, row, head, unit). The last is 1.
     * Any other stride of an input may be 0, which broadcasts it. Strides are never negative. Along a dimension of size 0 or 1, any
     * stride from 0 on is allowed and has no effect. Dense is [batch][seqlen][heads][dim]. Packed is [total][heads][dim], without a
     * batch stride: give 0. Paged is [num_pages][page_size][heads][dim], with the page stride in [0]. */
    int64_t q_stride[4];
    int64_t k_stride[4];
    int64_t v_stride[4];
    int64_t o_stride[4];
    int64_t q_tail_stride[4]; /* as q_stride */
    int64_t k_tail_stride[4]; /* as k_stride; a stride of 0 between heads: all heads share one tail */
    /* (batch, query head, row, key), always literal, any value >= 0; rows and keys as the masks count them. */
    int64_t bias_stride[4];
    int64_t mask_stride[4];
    int64_t scores_stride[4];
    int64_t lse_stride[3]; /* (batch, head, row); dense: [batch][heads_q][seqlen_q], packed [heads_q][total_q] (no batch stride) */
    /* (batch, block of rows, head, block of dims), always literal. The scale of a value is descale[b · s0 + floor(row / block[0]) ·
     * s1 + head · s2 + floor(dim / block[1]) · s3]. row is counted in the tensor (packed row, cache slot, slot in the page), so a
     * block of packed rows may span two sequences. b is the sequence, the cache's sequence, or the page. q counts query heads. Dims
     * of tails have no scale. */
    int64_t q_descale_stride[4];
    int64_t k_descale_stride[4];
    int64_t v_descale_stride[4];
    int64_t key_range_stride[4];  /* (batch, query head, row, interval), in pairs, always literal; row is counted in the tensor
                                     (packed: no batch stride) */
    int64_t list_stride[4];       /* of both lists: (batch, list head, block of rows, entry), always literal; packed: no batch
                                     stride */
    int64_t list_count_stride[3]; /* (batch, list head, block of rows) */
    int64_t alibi_batch_stride;   /* slopes[b · stride + head]; 0: one slope per head for all sequences */
} fa_attention_desc_t;

#define FA_ATTENTION_DESC_INIT                                                                                                            \
    {sizeof(fa_attention_desc_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0f, 0.0f, 0.0f, 0, 0, 0, 0, 0, 0, 0,   \
     0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0},            \
     {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0}, {0, 0, 0, 0},           \
     {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0}, 0}
FA_API fa_status_t fa_attention_desc_init(fa_attention_desc_t* desc, uint32_t struct_size);

enum { /* op: the call that a query is about */
    FA_OP_FORWARD = 1,
    FA_OP_MERGE = 2,
    FA_OP_APPEND_KV = 3,
    FA_OP_ROTARY = 4,
    FA_OP_BACKWARD = 5
};

/* Says whether a call would work on this handle: FA_OK, FA_UNSUPPORTED, or the status of what is invalid. Pointers are assumed
 * aligned to 16 bytes. */
FA_API fa_status_t fa_supports(fa_handle_t handle, const fa_attention_desc_t* desc, int32_t op);
/* Says how a call would be computed: backend, device, kernel, tiles and splits, or the reason for a refusal. The status is that of
 * fa_supports. Text is written for every status, and cut to n bytes with its terminating zero. desc NULL: the backend, and why
 * others were skipped. */
FA_API fa_status_t fa_explain(fa_handle_t handle, const fa_attention_desc_t* desc, int32_t op, char* text, uint64_t n);
/* Gives the answer and status of fa_explain without a handle. They are those of a handle for this backend and device, with
 * everything else at its default. It may be called from any thread. FA_BACKEND_AUTO: the backend that fa_create would take. A GPU's
 * context is created for the answer and released, unless the program holds one. */
FA_API fa_status_t fa_backend_supports(int32_t backend, int32_t device, const fa_attention_desc_t* desc, int32_t op, char* text,
                                       uint64_t n);
/* Bytes of a workspace with which the call allocates nothing. They suffice for all lengths within the descriptor's maxima, and for
 * the current parameters. A workspace is aligned to 256 bytes, may hold any bytes, and serves one call at a time.
 * On CUDA, kernels are loaded when first used, and compiled first if the module has only PTX for the device, which takes seconds.
 * This function loads those that the call will launch with tensors aligned to 16 bytes, so that the call need not. If loading
 * fails, the status is that of the call: FA_OUT_OF_MEMORY or FA_DEVICE_ERROR. *bytes is then not written. The other queries compile
 * no kernel. On Hopper they may load one that is already compiled, to learn how many clusters of it fit on the GPU. */
FA_API fa_status_t fa_workspace_size(fa_handle_t handle, const fa_attention_desc_t* desc, int32_t op, uint64_t* bytes);
/* Bytes from a pointer of the call's args to the end of the last element that the call may access there. They follow from
 * descriptor, sizes and strides alone, so a caller can compare them with the size of its buffer.
 * args is the op's args struct. Its pointers are not followed and need not be set. field is the pointer's offset in it, such as
 * offsetof(fa_forward_args_t, k). 0 bytes: the call does not use this pointer. For the pointers that a backward takes from the
 * forward, ask with FA_OP_FORWARD. It needs no handle.
 * Errors: those of the call's checks; FA_INVALID_ARGUMENT if field is no pointer to a tensor. */
FA_API fa_status_t fa_extent(const fa_attention_desc_t* desc, int32_t op, const void* args, uint32_t field, uint64_t* bytes);

/* ------------------------------------------------------------------------------------------------------------- forward */

enum { /* flags of the args: bits 0 … 7 are common to all calls, those of a single call begin at bit 8 */
    FA_ARGS_STREAM = 1 << 0, /* use the args' stream, which must be of the handle's device (NULL: the legacy default stream),
                                instead of the handle's */
    /* fa_backward: dq, dk and dv are f32 for all types of inputs, and all gradients are added to existing values */
    FA_BACKWARD_ACCUMULATE = 1 << 8,
    FA_MERGE_ACCUMULATE = 1 << 8,     /* fa_merge: o (f32) and lse already hold a state, and the parts are merged into it */
    FA_ROTARY_INTERLEAVED = 1 << 8,   /* fa_rotary, fa_append_kv: pairs are dims (2t, 2t + 1); else halves (t, t + rotary_dim /
                                         2) */
    FA_APPEND_DYNAMIC_SCALE = 1 << 9, /* fa_append_kv: quantise by the largest magnitude of each block of dims, and store
                                         the scales */
    FA_ROTARY_OF_K = 1 << 10          /* fa_rotary: x has k's shape, type, strides and lengths instead of q's */
};

enum { /* bits that a GPU sets in *device_status if a CPU handle would have refused the call. The GPU clamps the bad value, or treats it as
          not given */
    FA_BAD_LENGTH = 1 << 0, /* cu_seqlens, seqused, left padding, more new tokens than a cache has room for */
    FA_BAD_PAGE = 1 << 1,   /* a page id, of pages that are used */
    FA_BAD_INDEX = 1 << 2   /* kv_batch_idx, positions, entries and counts of lists, key ranges that do not ascend */
};

/* Where the data is, in the handle's memory. On the CPU, arrays of int32 are checked (FA_INVALID_ARGUMENT). A pointer must be given
 * exactly when its bit is in desc.operands. q, k, v and o must always be given, except that a tensor without elements may be NULL,
 * and v is NULL under FA_V_IN_K. Only element alignment is required. Outputs must not share elements with each other or with
 * inputs; interleaved slices are allowed. Structs are read during the call. The memory behind their pointers is used until the
 * stream has passed the call (CPU and host memory: until the call returns). */
typedef struct fa_forward_args_s {
    uint32_t struct_size;
    uint32_t flags;                 /* FA_ARGS_STREAM */
    const void* q;
    const void* k;
    const void* v;
    void* o;                        /* rows of a padded q beyond its length are set to 0; gaps of a packed one are not written */
    float* lse;                     /* natural logarithm, scale and sink included; −inf if a row has no key, or is padding beyond its
                                       sequence's length */
    const void* q_tail;             /* the last dim_tail dims of q; q then holds only the others */
    const void* k_tail;             /* the same for k */
    const void* q_descale;          /* multiplies the stored values; see q_descale_stride. The products must stay finite in f32, and
                                       so must scale · q_descale · k_descale · log2 e, or rows may be NaN */
    const void* k_descale;          /* the same for k. Blocks hold their own scales: k_descale and k_shift are not allowed with
                                       them */
    const void* v_descale;          /* the same for v */
    const void* k_shift;            /* value = stored · descale + shift; has the type and the indices of k_descale */
    const void* v_shift;            /* the same for v */
    const float* o_scale;           /* one value: o is round(o · o_scale); an 8-bit o saturates */
    const void* bias;               /* [batch][heads_q][seqlen_q][seqlen_k] by bias_stride */
    const float* bias_scale;        /* [heads_q], finite; with slopes of fa_alibi_slopes, a bias that holds distances becomes
                                       ALiBi */
    const uint8_t* mask;            /* the shape of bias, by mask_stride; nonzero: attend */
    const int32_t* key_ranges;      /* pairs (begin, end) of keys, end exclusive, by key_range_stride: a key in no range of its row
                                       is removed. Ranges of a row ascend and do not overlap. They may be empty, or reach beyond the
                                       keys */
    const int32_t* key_list;        /* blocks of keys in which masks apply, in any order; −1: an unused entry. Each occurs at most
                                       once in the two lists together (not checked: a repeated entry may count twice). With a list, a
                                       key in no entry is removed */
    const int32_t* key_list_count;  /* number of entries to read, up to list_max; without: list_max */
    const int32_t* full_list;       /* blocks in which causal, window, chunk, boolean mask and ranges do not apply */
    const int32_t* full_list_count; /* as key_list_count */
    const float* alibi_slopes;      /* [heads_q], or [batch][heads_q] by alibi_batch_stride; at most 2.35e38; see fa_alibi_slopes */
    const float* sinks;             /* [heads_q] logits */
    const int32_t* causal_offset;   /* [batch] */
    const int32_t* cu_seqlens_q;    /* [batch + 1], not decreasing, within total_q; sequence b has rows [cu[b], cu[b + 1]) */
    const int32_t* cu_seqlens_k;    /* [batch + 1], within total_k */
    const int32_t* seqused_q;       /* [batch] number of valid rows, <= seqlen_q or the packed range */
    const int32_t* seqused_k;       /* [batch] number of valid keys, left padding included, <= seqlen_k or the packed range */
    const int32_t* leftpad_k;       /* [batch] slots to skip before key 0 */
    const int32_t* kv_batch_idx;    /* [batch] sequence of the cache (row of the page table) that sequence b reads */
    const int32_t* page_table;      /* [batch or kv_batch][ceil(seqlen_k / page_size)] page ids; unused entries are never read */
    float* scores;                  /* [batch][heads_q][seqlen_q][seqlen_k] by scores_stride; pairs outside the valid lengths get 0
                                       (raw, capped, probability) or −inf (biased). With lists: (reserved) */
    const uint64_t* rng_state;      /* {seed, offset}, read when the call runs; dropout_seed and dropout_offset must then be 0 */
    uint32_t* device_status;        /* one word: a GPU checks the arrays in its memory first, with one more launch, and or-s
                                       FA_BAD_… bits into it */
    uint64_t dropout_seed;          /* see fa_dropout_mask; not used if dropout_p is 0 */
    uint64_t dropout_offset;        /* the same */
    void* stream;                   /* with FA_ARGS_STREAM */
    void* workspace;                /* NULL: the handle's own scratch memory, which grows as needed */
    uint64_t workspace_size;        /* bytes; at least what fa_workspace_size gives */
    /* With dropout, if the call computes a part of a larger problem: where its first row, key and head are in the dropout mask of the
     * larger problem. Row i, key j and head h of sequence b use that mask at row dropout_row + i, key dropout_key + j and batch_head =
     * b * dropout_heads + dropout_head + h; dropout_heads 0: heads_q. */
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
/* Attention with optional operands. */
FA_API fa_status_t fa_forward_ex(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_forward_args_t* args);

/* ------------------------------------------------------------------------------------------------------------ backward */

/* Gradients of a loss with respect to the forward's inputs. The caller gives the loss's gradient with respect to o (dout) and, if the
 * loss depends on LSE, its gradient with respect to LSE (dlse). P is computed again, tile by tile, from q, k and LSE, and dropout from
 * its seed and offset.
 *     P_ij  = exp(s_ij − LSE_i)                  s: the final score of the forward, after softcap, bias and masks
 *     dv_j  = Σ_i P̃_ij dout_i                    P̃ = P · keep / (1 − dropout_p)
 *     dS_ij = P_ij (dP_ij − Δ_i + dlse_i)        dP = keep / (1 − dropout_p) · dout vᵀ,  Δ_i = dout_i · o_i
 *     dbias = bias_scale_h dS, dsinks_h = Σ_i exp(sink_h − LSE_i) (dlse_i − Δ_i)
 *     dq_i  = scale Σ_j dS'_ij k_j,  dk_j = scale Σ_i dS'_ij q_i        dS' = dS · (1 − tanh²(scale q·k / softcap)); dS if
 *                                                                       softcap is 0
 * If several query heads share a k or v head, this head gets the sum over them.
 *
 * Inputs. The descriptor is the forward's and has FA_OPERAND_LSE. FA_OPERAND_SCORES, scores_stage, num_splits and split_size have
 * no effect. `forward` points to the forward's args: its inputs, and o and lse as it wrote them. Its flags, stream, workspace and
 * scores are not used. dout has q's type and o's shape.
 * Types are f32, f16 and bf16. k and v have the same type and the same heads. Scales, shifts, tails, o_scale, caches (page_table,
 * kv_batch_idx) and the study baselines have no gradient here. All of these are FA_UNSUPPORTED.
 * With o_dtype = FA_F32, the forward keeps an f32 o for this call. If P is nearly uniform, dP − Δ cancels, and the Δ of a rounded o
 * spoils dq.
 *
 * Outputs. A gradient has its input's type (dbias and dsinks: f32) and is rounded once. Each is optional: if its pointer is NULL,
 * it is not computed. dq, dk and dv share no elements with each other or with inputs. Rows and keys of padded tensors beyond the
 * valid lengths get 0. Gaps of packed tensors are not written. If a row's LSE is −inf (no keys and no sink), below −2.35e38 or
 * +inf, the row takes no part and has dq = 0, whatever its q and dout hold.
 * NaN and infinite values show in every gradient with a sum that they take part in. They need not show through a p that is 0 in
 * f32. They may also spoil gradients of other rows and keys of their sequence and kv head (0 · NaN), and sums over these (dbias,
 * dsinks). Which ones these are may differ between instruction sets and devices. They do not show in gradients of other sequences
 * and kv heads. Values outside the valid lengths show nowhere.
 * The CPU backend gives the same bits every time, for any number of threads. A GPU does so under FA_DETERMINISTIC.
 *
 * Strides of the gradients. All zero means those of the forward's tensor (dout: o's, dlse: LSE's, dbias: bias's). dbias sums over a
 * dimension of stride 0 and over repeats (bias_period). If batch, rows or keys are 0, it is not written. If none is 0, no two of its
 * sums may share an address. If k or v is broadcast by a stride of 0, dk and dv need their own strides. */
typedef struct fa_backward_args_s {
    uint32_t struct_size;
    uint32_t flags;                   /* FA_ARGS_STREAM, FA_BACKWARD_ACCUMULATE */
    const fa_forward_args_t* forward; /* the forward's args */
    const void* dout;                 /* gradient with respect to o */
    const float* dlse;                /* gradient with respect to LSE; NULL: 0 */
    void* dq;
    void* dk;
    void* dv;
    float* dbias;                     /* only with FA_OPERAND_BIAS; 0 if a key is removed */
    float* dsinks;                    /* [heads_q]; only with FA_OPERAND_SINKS */
    int64_t dout_stride[4];           /* (batch, row, head, element) */
    int64_t dlse_stride[3];           /* (batch, head, row) */
    int64_t dq_stride[4];
    int64_t dk_stride[4];
    int64_t dv_stride[4];
    int64_t dbias_stride[4];          /* (batch, query head, row, key) */
    void* stream;                     /* as in the forward */
    void* workspace;                  /* as in the forward */
    uint64_t workspace_size;          /* as in the forward */
} fa_backward_args_t;

#define FA_BACKWARD_ARGS_INIT                                                                                                             \
    {sizeof(fa_backward_args_t), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, {0, 0, 0, 0}, {0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0},  \
     {0, 0, 0, 0}, {0, 0, 0, 0}, NULL, NULL, 0}
FA_API fa_status_t fa_backward_args_init(fa_backward_args_t* args, uint32_t struct_size);
FA_API fa_status_t fa_backward(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_backward_args_t* args);

/* --------------------------------------------------------------------------------------------------------------- merge */

/* Merges partial results over disjoint sets of keys into the whole. Part p is an f32 o with its LSE, as fa_forward_ex writes them
 * with o_dtype = FA_F32 and FA_OPERAND_LSE. Parts are merged in ascending order. An LSE of −inf, below −2.35e38 or +inf means that
 * a part saw no key, and its o is ignored. A sink enters once: in one part's forward, or here by FA_OPERAND_SINKS, never both.
 * o_scale, too, enters once. It is not allowed with FA_MERGE_ACCUMULATE.
 * These fields of the descriptor are read: batch, heads_q, seqlen_q, total_q, dim_v, o_dtype, o and LSE strides, and q_dtype for
 * the default of o_dtype. These operands are read: FA_OPERAND_LSE, _SINKS, _O_SCALE, _CU_SEQLENS_Q, _SEQUSED_Q. Any other operand
 * bit is allowed and ignored, so the forward's own descriptor can be used. */
typedef struct fa_merge_args_s {
    uint32_t struct_size;
    uint32_t flags;              /* FA_ARGS_STREAM, FA_MERGE_ACCUMULATE */
    int64_t parts;               /* number of parts, >= 0 */
    const float* o_parts;
    const float* lse_parts;
    int64_t o_parts_stride[5];   /* (part, batch, row, head, element); all zero: dense [parts][batch][seqlen_q][heads_q][dim_v] or
                                    [parts][total_q][heads_q][dim_v] (packed: no batch stride) */
    int64_t lse_parts_stride[4]; /* (part, batch, head, row); all zero: dense [parts][batch][heads_q][seqlen_q] or
                                    [parts][heads_q][total_q] */
    void* o;
    float* lse;
    const float* sinks;          /* as in the forward, and so are the fields below */
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

/* Rotary embedding of a tensor with q's shape, type, strides and lengths. Dims [rotary_begin, rotary_begin + rotary_dim) of each
 * head are rotated by the angle of the row's position. The other dims are copied. The position of row i of sequence b is
 * positions[...] if given, else position_offset[b] + i, else i. Positions count after left padding. Arithmetic is in f32, with one
 * rounding. Types are f32, f16, bf16.
 * These fields of the descriptor are read: batch, heads_q, seqlen_q, total_q, dim_qk, q_dtype, q strides, FA_OPERAND_CU_SEQLENS_Q
 * and _SEQUSED_Q. Other operands are ignored. Rows beyond a sequence's length are not written.
 * Under FA_ROTARY_OF_K, these fields replace them: heads_k, seqlen_k, total_k, k_dtype, k strides, FA_OPERAND_CU_SEQLENS_K and
 * _SEQUSED_K. FA_OPERAND_PAGE_TABLE and _KV_BATCH_IDX are then FA_UNSUPPORTED, because fa_append_kv rotates the keys that it
 * stores. */
typedef struct fa_rotary_args_s {
    uint32_t struct_size;
    uint32_t flags;                 /* FA_ARGS_STREAM, FA_ROTARY_… */
    const void* x;
    void* out;                      /* may be x itself, with x's strides */
    int64_t out_stride[4];          /* all zero: x's */
    const float* cos;               /* [max_position][rotary_dim / 2], dense */
    const float* sin;               /* the same */
    int64_t max_position;           /* rows of cos and sin */
    int64_t rotary_begin;           /* first rotated dim */
    int64_t rotary_dim;             /* number of rotated dims: even, 2 … dim_qk − rotary_begin */
    const int32_t* positions;       /* [batch][seqlen_q], packed [total_q]; or NULL */
    const int32_t* position_offset; /* [batch]; or NULL */
    const int32_t* cu_seqlens;      /* cu_seqlens_q of the forward, for k cu_seqlens_k */
    const int32_t* seqused;         /* seqused_q of the forward, for k seqused_k */
    void* stream;                   /* as in the forward, and so are the two below */
    void* workspace;
    uint64_t workspace_size;
} fa_rotary_args_t;

#define FA_ROTARY_ARGS_INIT                                                                                                               \
    {sizeof(fa_rotary_args_t), 0, NULL, NULL, {0, 0, 0, 0}, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0}
FA_API fa_status_t fa_rotary_args_init(fa_rotary_args_t* args, uint32_t struct_size);
FA_API fa_status_t fa_rotary(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_rotary_args_t* args);

/* Writes new tokens into the descriptor's cache (its k and v strides and types, pages, kv_batch_idx, leftpad_k).
 * Slots. Token t of sequence b goes to slot seqused_k[b] + t, or to slot positions[...] (−1: skip this token). Slots include left
 * padding and must be in [0, seqlen_k). Nothing outside the sequence's own slots is ever written. seqused_k is the length *before*
 * the call. The caller adds the new tokens afterwards. Without FA_OPERAND_SEQUSED_K and positions, tokens start at the left
 * padding. If two tokens of one call share a slot, it is undefined which of them remains. If cos and sin are given, k_new is
 * rotated first (position = slot − left padding).
 * Inputs. k_new and v_new have q_dtype (f32, f16, bf16) and shape [batch][seqlen_new][heads][dim], or packed
 * [total_new][heads][dim] by cu_seqlens_new. Under FA_V_IN_K there is no v, and no v_new. With a tail, k_new has all dim_qk dims.
 * The last dim_tail of them go to k_tail.
 * Conversion. If the cache has another type, the tokens are converted to it. Blocks are quantised as ggml's reference does, byte
 * for byte, and need no descale operands. Their f16 scale is infinite beyond f16's range. A block holds NaN if one of its values is
 * not finite. Other types store round((x − shift) / descale) with the given scales (none: 1) and shifts (none: 0), saturated in 8
 * and 4 bits.
 * Dynamic scales. Under FA_APPEND_DYNAMIC_SCALE, caches of 8 and 4 bits (not blocks; k, v or both) get computed scales, which are
 * written into k_descale and v_descale. These need distinct entries for each slot, head and block of dims. A block has one row.
 * descale = largest magnitude in the block / largest value of the type (E4M3 448, E5M2 57344, E2M1 6, I8 127, I4 7, U4 15), at
 * least 2^-126 and finite. An e8m0 scale is rounded up to a power of two, others are rounded to nearest. FA_U4 with shifts: shift =
 * smallest value, descale = (largest − smallest) / 15. A block of zeros has scale 1. If a 4-bit block has a non-finite value, its
 * scale is NaN. */
typedef struct fa_append_kv_args_s {
    uint32_t struct_size;
    uint32_t flags;                /* FA_ARGS_STREAM, FA_APPEND_DYNAMIC_SCALE, FA_ROTARY_INTERLEAVED */
    const void* k_new;             /* the new keys */
    const void* v_new;             /* the new values */
    int64_t seqlen_new;            /* tokens of a sequence; with cu_seqlens_new or seqused_new the most allowed */
    int64_t total_new;             /* with cu_seqlens_new: rows of the packed k_new, v_new */
    int64_t k_new_stride[4];       /* (batch, row, head, element); all zero: dense */
    int64_t v_new_stride[4];       /* the same */
    void* k;                       /* the cache */
    void* v;                       /* the cache */
    void* k_tail;                  /* as in the forward, by their bits in desc.operands, and so are the four below */
    void* k_descale;
    void* v_descale;
    void* k_shift;
    void* v_shift;
    const int32_t* cu_seqlens_new; /* [batch + 1] or NULL */
    const int32_t* seqused_new;    /* [batch] number of tokens that are given, or NULL */
    const int32_t* positions;      /* [batch][seqlen_new], packed [total_new], or NULL */
    const int32_t* seqused_k;      /* as in the forward, by their bits in desc.operands, and so are the four below */
    const int32_t* leftpad_k;
    const int32_t* kv_batch_idx;
    const int32_t* page_table;
    uint32_t* device_status;
    const float* cos;              /* [max_position][rotary_dim / 2] or NULL: no rotation */
    const float* sin;              /* the same */
    int64_t max_position;          /* rows of cos and sin */
    int64_t rotary_begin;          /* as in fa_rotary */
    int64_t rotary_dim;            /* as in fa_rotary */
    void* stream;                  /* as in the forward, and so are the two below */
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
    FA_CONVERT_ACCUMULATE = 1 << 0 /* x (f32, f16 or bf16) is added to existing values of out (f32) */
};

/* Copies one tensor into another of the same size. The two share no element. Elements of equal types are copied bit for bit, for
 * every type except FA_BIT. f32, f16 and bf16 are converted into each other, rounded once. Strides count units, are literal, and 0
 * or more. The last is 1. No two elements of `out` share an address. This struct is an element of an array, so it is frozen: it never
 * grows. */
typedef struct fa_conversion_s {
    const void* x;     /* NULL: zeros; x_stride and x_dtype are then not read */
    void* out;
    int64_t size[4];   /* elements: (batch, row, head, dim), or any other four dimensions; 1 for a dimension that is not used */
    int64_t x_stride[4];
    int64_t out_stride[4];
    int32_t x_dtype;   /* FA_F32 … */
    int32_t out_dtype; /* FA_F32 … */
    uint64_t flags;    /* FA_CONVERT_… */
} fa_conversion_t;

/* Copies, converts, sums or clears tensors with strides: gathering and scattering of rows, other layouts, other types. list is read
 * during the call. flags and stream are those of fa_copy_async. On a GPU, many conversions share a launch and run at the same time.
 * No conversion may therefore write another one's x or out, which is not checked. In host memory, the calling thread does the work.
 * If an error is found before work starts, all outputs are untouched.
 * Errors: FA_INVALID_ARGUMENT, FA_UNSUPPORTED_FIELD, FA_UNSUPPORTED (types that are not converted into each other, a last stride
 * that is not 1), FA_DEVICE_ERROR. */
FA_API fa_status_t fa_convert(fa_handle_t handle, const fa_conversion_t* list, int64_t count, uint32_t flags, void* stream);

/* ------------------------------------------------------------------------------------------------------------- helpers */

/* The dropout mask, which is the same on every backend. keep[r · keys + c] is 1 if key j = key + c of row i = row + r is kept, else
 * 0, for batch_head = b · heads_q + h. It is Philox 4x32-10: key' = first two words of Philox(key = seed, counter = {offset, 0}); w =
 * word j & 3 of Philox(key', counter = {j >> 2, i, low(batch_head), high(batch_head)}); kept iff w >= floor(p · 2^32). */
FA_API fa_status_t fa_dropout_mask(float p, uint64_t seed, uint64_t offset, int64_t batch_head, int64_t row, int64_t rows,
                                   int64_t key, int64_t keys, uint8_t* keep);

/* Writes the `heads` slopes of ALiBi. For a power of two they are 2^(−max_bias · h / heads), h = 1 … heads. Otherwise they are
 * those of the power of two below, then every second one of the power of two above. max_bias: finite, 0 or more; 0: the usual 8. */
FA_API fa_status_t fa_alibi_slopes(int64_t heads, float max_bias, float* slopes);

#ifdef __cplusplus
}
#endif

#endif
