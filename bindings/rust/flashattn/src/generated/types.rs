// Written by tools/generate_abi.py from flashattn.h: change the header, then run it again.
choices! {
    /// Where a handle computes.
    Backend
    /// the first usable of CUDA, HIP, CPU; decided once, in fa_create
    Auto = FA_BACKEND_AUTO,
    /// `FA_BACKEND_CPU`.
    Cpu = FA_BACKEND_CPU,
    /// `FA_BACKEND_CUDA`.
    Cuda = FA_BACKEND_CUDA,
    /// `FA_BACKEND_HIP`.
    Hip = FA_BACKEND_HIP,
}
choices! {
    /// Which lines the log gets.
    LogLevel
    /// `FA_LOG_NONE`.
    None = FA_LOG_NONE,
    /// `FA_LOG_ERROR`.
    Error = FA_LOG_ERROR,
    /// which backend was chosen and why others were not
    Info = FA_LOG_INFO,
    /// one line a call
    Debug = FA_LOG_DEBUG,
}
choices! {
    /// The pool of CPU threads.
    ThreadPool
    /// FA_POOL_CALLER if parallel_for was given, else FA_POOL_OWN
    Auto = FA_POOL_AUTO,
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
    Openmp = FA_POOL_OPENMP,
    /// one pool for all handles of the process. It has at most one thread less than there are CPUs. None of them
    /// works if the calling threads fill the CPUs. They sleep within microseconds after their last work, and a call
    /// does not wait for a thread that is slow to wake. Safe across fork()
    Own = FA_POOL_OWN,
    /// parallel_for; FA_INVALID_ARGUMENT if none was given
    Caller = FA_POOL_CALLER,
}
choices! {
    /// What may be rounded.
    Precision
    /// q as given; P no coarser than q's type
    Default = FA_PRECISION_DEFAULT,
    /// permits rounding, but does not promise it. q may be rounded to k's element type (to 8 bits: with a
    /// scale per row, or per block of its dims), and P to v's. q, P, values of block types and scaled
    /// values may be rounded to bf16. 8-bit P · v may be summed over keys in a matrix unit's short
    /// accumulator. Study baselines ignore it
    Native = FA_PRECISION_NATIVE,
}
choices! {
    /// Where the diagonal of a mask is.
    Alignment
    /// `FA_ALIGN_UNSET`.
    Unset = FA_ALIGN_UNSET,
    /// off = 0: row 0 is on key 0
    TopLeft = FA_ALIGN_TOP_LEFT,
    /// off = keys − rows of the sequence: its last row is on its last key. Use it for decoding
    BottomRight = FA_ALIGN_BOTTOM_RIGHT,
    /// off = causal_offset[b] (FA_OPERAND_CAUSAL_OFFSET)
    Explicit = FA_ALIGN_EXPLICIT,
}
choices! {
    /// How it is computed.
    Algorithm
    /// `FA_ALGORITHM_FLASH`.
    Flash = FA_ALGORITHM_FLASH,
    /// study baseline, f32: all scores of a head in workspace, softmax over them, then times v
    Standard = FA_ALGORITHM_STANDARD,
    /// study baseline, f32: keys in the outer loop, o rewritten for every block of keys
    Flash1 = FA_ALGORITHM_FLASH1,
}
choices! {
    /// Which scores are written.
    ScoresStage
    /// scale · q·k, masks not applied
    Raw = FA_SCORES_RAW,
    /// after softcap, masks not applied
    Capped = FA_SCORES_CAPPED,
    /// after bias, ALiBi and every mask: −inf if a key is removed
    Biased = FA_SCORES_BIASED,
    /// after softmax (sink included), before dropout: 0 if a key is removed
    Probability = FA_SCORES_PROBABILITY,
}
choices! {
    /// What an entry of a key list counts.
    ListSpace
    /// keys of the sequence, as masks count them
    Keys = FA_LIST_KEYS,
    /// slots of the cache: page · page_size + slot in the page. Only in key_list, with list_keys 1. Keys then have
    /// no position, so causal, window, chunk, ALiBi, bias, mask, ranges, dropout and scores are not allowed.
    /// Lengths of keys and a page table are ignored, but fa_append_kv uses a page table
    Slots = FA_LIST_SLOTS,
}
choices! {
    /// The call that a query is about.
    Op
    /// `FA_OP_FORWARD`.
    Forward = FA_OP_FORWARD,
    /// `FA_OP_MERGE`.
    Merge = FA_OP_MERGE,
    /// `FA_OP_APPEND_KV`.
    AppendKv = FA_OP_APPEND_KV,
    /// `FA_OP_ROTARY`.
    Rotary = FA_OP_ROTARY,
    /// `FA_OP_BACKWARD`.
    Backward = FA_OP_BACKWARD,
}
choices! {
    /// How elements are stored.
    Dtype
    /// one element a unit, as in all types up to FA_E5M2, and in FA_I8
    F32 = FA_F32,
    /// `FA_F16`.
    F16 = FA_F16,
    /// `FA_BF16`.
    Bf16 = FA_BF16,
    /// 8-bit float, 4 exponent bits, largest 448, no infinity (OCP "fn")
    E4m3 = FA_E4M3,
    /// 8-bit float, 5 exponent bits, largest 57344
    E5m2 = FA_E5M2,
    /// k and v only; two a byte, the even dim in the low half: 0 .5 1 1.5 2 3 4 6 and their negatives
    E2m1 = FA_E2M1,
    /// scales only: 2^(byte − 127), byte 255 is NaN
    E8m0 = FA_E8M0,
    /// k and v only; as with other types, a scale that is not given is 1
    I8 = FA_I8,
    /// k and v only; two a byte, the even dim in the low half; two's complement
    I4 = FA_I4,
    /// the same, 0 … 15
    U4 = FA_U4,
    /// masks only: eight a byte, key j in bit j & 7
    Bit = FA_BIT,
    /// 18 bytes: d, qs[16];              d · (x − 8)
    Q40 = FA_Q4_0,
    /// 20 bytes: d, m, qs[16];           d · x + m
    Q41 = FA_Q4_1,
    /// 22 bytes: d, qh[4], qs[16];       d · (x − 16)
    Q50 = FA_Q5_0,
    /// 24 bytes: d, m, qh[4], qs[16];    d · x + m
    Q51 = FA_Q5_1,
    /// 34 bytes: d, i8 qs[32];           d · x
    Q80 = FA_Q8_0,
}
