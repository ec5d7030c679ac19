/* libflashattn-cp: one attention over several processes (context parallelism). This header is its manual. The core's manual is
 * flashattn.h.
 *
 *     fa_cp_transport_t transport;
 *     fa_cp_mpi_open(MPI_COMM_WORLD, &transport);                 of flashattn_cp_mpi.h
 *     fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
 *     info.transport = &transport;
 *     fa_cp_create(&cp, handle, &info);
 *     fa_cp_desc_t spread = FA_CP_DESC_INIT;
 *     spread.shard = FA_CP_SHARD_ROWS; spread.layout = FA_CP_LAYOUT_ZIGZAG;
 *     fa_cp_partition(&spread, rank, ranks, NULL, 1, 8192, mine, 2, &count);        which rows of the sequence are mine
 *     fa_cp_forward(cp, &desc, &spread, &args);                                     q, k, v and o: my rows alone
 *     fa_cp_backward(cp, &desc, &spread, &gradients);                               dq, dk and dv, too
 *
 * A rank is a process, or a thread with its own handle. Calls are collective: all ranks make the same calls in the same order.
 *
 * These are the same on every rank: the attention descriptor of the whole problem (seqlen_q, seqlen_k, total_q and total_k count
 * all ranks' rows), the fa_cp_desc_t, and the arrays cu_seqlens_q, cu_seqlens_k and causal_offset, which also hold whole sequences.
 * Strides and `strided` describe the local tensors and may differ.
 *
 * Each call begins with an exchange of what ranks are about to do, and ends with an exchange of statuses. If ranks differ, every
 * rank gets FA_PEERS_DISAGREE. If a rank refuses its arguments, it gets its own status, and the others get FA_PEER_FAILED. So
 * either every rank gets FA_OK, or every rank that still runs gets another status. No wait for a peer is longer than the time
 * limit. There is one exception that no exchange can prevent: if a rank loses the very last message, it alone learns so in this
 * call, and its peers in the next.
 *
 * Statuses, messages, sized structs and the ABI follow the core's rules. */
#ifndef FLASHATTN_CP_H
#define FLASHATTN_CP_H

#include <flashattn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------------------------------------- the transport */

enum { FA_CP_SEND = 1, FA_CP_RECEIVE = 2 };

/* Moves `bytes` to or from one peer. Two ranks list the messages between them in the same order. This struct is an element of an
 * array, so it is frozen: it never grows. */
typedef struct fa_cp_message_s {
    int32_t peer;      /* rank of the peer */
    int32_t direction; /* FA_CP_SEND or FA_CP_RECEIVE */
    uint64_t bytes;    /* 1 … 2^30: the library cuts longer ones */
    void* data;        /* not written when sent */
    uint64_t tag;      /* the same on both sides; tags of messages in flight at once differ in their low 15 bits */
} fa_cp_message_t;

enum { /* flags of a transport */
    FA_CP_DEVICE_MEMORY = 1 << 0 /* messages are in the memory of the handle's device, and are sent and received in stream order.
                                    Without it they are in host memory */
};

/* A transport moves messages between ranks. It is a table of functions, which a program takes from flashattn_cp_mpi.h or
 * flashattn_cp_nccl.h, or writes itself. The library calls them from the thread that called it. Statuses: FA_OK, FA_TIMEOUT,
 * FA_PEER_FAILED (also for a message of another length than the receiver expects), FA_OUT_OF_MEMORY. Any other counts as
 * FA_PEER_FAILED.
 *
 * Under FA_CP_DEVICE_MEMORY, only gather_host and synchronize wait on the host. Messages of start, and of all_gather, are sent and
 * received after all work that the stream of enter has at that time. Work that this stream gets after wait runs after the messages.
 * Other work runs at the same time. A message of another length is then detected by the transport or not at all, because ranks have
 * compared what they are about to do. */
typedef struct fa_cp_transport_s {
    uint32_t struct_size;
    uint32_t flags; /* FA_CP_DEVICE_MEMORY */
    int32_t rank;   /* 0 … ranks − 1 */
    int32_t ranks;  /* number of ranks */
    void* user;     /* must outlive the fa_cp_t */
    /* Starts all messages as one group and returns at once. The array is read only during the call. The messages' memory belongs to
     * the transport until a wait has returned FA_OK. */
    fa_status_t (*start)(void* user, const fa_cp_message_t* messages, int64_t count, uint64_t* ticket);
    /* FA_OK when all messages of the group are done, which frees the ticket. FA_TIMEOUT after timeout_ms (−1: no limit).
     * FA_PEER_FAILED. Under FA_CP_DEVICE_MEMORY, it returns when the stream's later work is ordered after the messages. */
    fa_status_t (*wait)(void* user, uint64_t ticket, int64_t timeout_ms);
    /* Starts the gathering of `bytes` bytes of every rank into to[ranks][bytes]. NULL: the library uses start. */
    fa_status_t (*all_gather)(void* user, const void* from, void* to, uint64_t bytes, uint64_t* ticket);
    /* After a failure: gives up everything that was started, so that no memory of the library is accessed any more. NULL: this is
     * not possible, as with MPI. fa_cp_destroy then leaves the buffers allocated, because a late message may still arrive. */
    void (*abandon)(void* user);
    /* This one and the three below: only with FA_CP_DEVICE_MEMORY, and then all four. A call begins on this native stream (NULL:
     * the legacy default stream), after all work that earlier calls have enqueued. */
    fa_status_t (*enter)(void* user, void* stream);
    /* The call has enqueued all of its work. */
    fa_status_t (*leave)(void* user);
    /* Gathers bytes of host memory, at most 2^30 of all ranks together, into to[ranks][bytes], and returns when they have
     * arrived. */
    fa_status_t (*gather_host)(void* user, const void* from, void* to, uint64_t bytes, int64_t timeout_ms);
    /* Returns when all work is done that was enqueued on the streams of enter. */
    fa_status_t (*synchronize)(void* user, int64_t timeout_ms);
} fa_cp_transport_t;

#define FA_CP_TRANSPORT_INIT {sizeof(fa_cp_transport_t), 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}
FA_API fa_status_t fa_cp_transport_init(fa_cp_transport_t* transport, uint32_t struct_size);

/* ------------------------------------------------------------------------------------------------------------------ the object */

typedef struct fa_cp_s* fa_cp_t;

typedef struct fa_cp_create_info_s {
    uint32_t struct_size;
    uint32_t flags;                     /* none yet: 0 */
    const fa_cp_transport_t* transport; /* copied */
    int64_t timeout_ms;                 /* longest wait for a peer, which may be computing meanwhile; 0: 60,000; −1: none */
    /* The figures that FA_CP_METHOD_AUTO and fa_cp_explain use, the same on all ranks, finite. 0: with FA_CP_DEVICE_MEMORY 1.6e11,
     * 1.7e-4 and 6.2e14, those of H100s of one host in 16-bit types, else 3e9, 1e-5 and 1e11. */
    double link_bytes_per_second; /* rate at which a rank sends while it receives as many bytes */
    double link_seconds;          /* time of a message without bytes */
    double flops_per_second;      /* speed of a rank in attention */
} fa_cp_create_info_t;

#define FA_CP_CREATE_INFO_INIT {sizeof(fa_cp_create_info_t), 0, NULL, 0, 0, 0, 0}
FA_API fa_status_t fa_cp_create_info_init(fa_cp_create_info_t* info, uint32_t struct_size);

/* Creates the object over a handle, which it borrows and which must outlive it. The handle's tensors are in the same memory as the
 * transport's messages: FA_MEMORY_DEVICE with FA_CP_DEVICE_MEMORY, else FA_MEMORY_HOST. FA_BACKEND_CPU takes either. It is not
 * collective. On failure *cp is NULL, and fa_cp_last_error(NULL) has the message. Errors: FA_INVALID_ARGUMENT,
 * FA_UNSUPPORTED_FIELD, FA_UNSUPPORTED (the other memory), FA_OUT_OF_MEMORY. */
FA_API fa_status_t fa_cp_create(fa_cp_t* cp, fa_handle_t handle, const fa_cp_create_info_t* info);
/* Frees the object and its buffers, which it keeps between calls, but neither handle nor transport. In device memory it waits for
 * the work of calls as fa_cp_synchronize does. If that fails and the transport has no abandon, it leaves the buffers allocated.
 * NULL is allowed. It is not collective. */
FA_API fa_status_t fa_cp_destroy(fa_cp_t cp);
/* The message of the last failed call, "" after a call that succeeded. With NULL, it is the calling thread's last message from a
 * function without a fa_cp_t. */
FA_API const char* fa_cp_last_error(fa_cp_t cp);

/* ---------------------------------------------------------------------------------------------------------------- who has what */

enum { /* shard: what is distributed over the ranks; required */
    FA_CP_SHARD_ROWS = 1, /* rows of q and o, keys of k and v: training, prefill */
    FA_CP_SHARD_KEYS = 2  /* only keys: decoding from a distributed cache. Each rank has all of q and gets all of o */
};

enum { /* layout, with FA_CP_SHARD_ROWS: which rows and keys of a sequence a rank has */
    FA_CP_LAYOUT_CONTIGUOUS = 0, /* rank r: part r of `ranks` */
    FA_CP_LAYOUT_ZIGZAG = 1      /* rank r: parts r and 2 · ranks − 1 − r of 2 · ranks: equal work for each under a causal mask */
};

enum { /* method */
    FA_CP_METHOD_AUTO = 0,       /* the possible method with the lowest time by the model of docs/distributed.md and the figures of
                                    fa_cp_create_info_t, for the forward and the backward separately. Under FA_DETERMINISTIC never
                                    the ring, because its bits depend on the number of ranks. With FA_CP_SHARD_KEYS merge */
    FA_CP_METHOD_ULYSSES = 1,    /* each rank computes all rows of its share of the heads. `ranks` divides heads_k and heads_v; no
                                    bias, no mask. Bits: those of one device, if split_size is set */
    FA_CP_METHOD_ALL_GATHER = 2, /* each rank computes its rows with the keys that they see, which are gathered in chunks of heads.
                                    Bits: those of one device, if split_size is set and each range of rows has more than 16 ·
                                    heads_k / heads_q */
    FA_CP_METHOD_RING = 3,       /* k and v of the ranks pass from rank to rank; partial results are merged in f32. Memory for two
                                    ranks' keys instead of all. Bits: the same every time for the same number of ranks. No chunk */
    FA_CP_METHOD_MERGE = 4       /* FA_CP_SHARD_KEYS: each rank's partial o (f32) and LSE are gathered and merged in order of rank.
                                    Bits: the same every time for the same number of ranks, and on every rank. No chunk */
};

/* How the problem is distributed. Fields are the same on all ranks. */
typedef struct fa_cp_desc_s {
    uint32_t struct_size;
    uint32_t flags;     /* none yet: 0 */
    int32_t shard;      /* FA_CP_SHARD_… */
    int32_t layout;     /* FA_CP_LAYOUT_… */
    int32_t method;     /* FA_CP_METHOD_… */
    int32_t head_chunk; /* all-gather: k heads gathered at once, a multiple of heads_k / gcd(heads_k, heads_v) that divides heads_k;
                           0: as many as keep the buffer of keys below 64 MiB */
    int64_t block;      /* parts begin at multiples of it; 0: 1 */
} fa_cp_desc_t;

#define FA_CP_DESC_INIT {sizeof(fa_cp_desc_t), 0, 0, 0, 0, 0, 0}
FA_API fa_status_t fa_cp_desc_init(fa_cp_desc_t* spread, uint32_t struct_size);

/* Rows [begin, begin + rows) of a sequence. On the rank they start at its row `local`: a row of the packed tensor if there is a
 * cu_seqlens, else of the sequence. This struct is an element of an array, so it is frozen: it never grows. */
typedef struct fa_cp_range_s {
    int64_t sequence;
    int64_t begin;
    int64_t rows;
    int64_t local;
} fa_cp_range_t;

/* The rows of one rank, for data loaders, position numbers and labels. Ranges ascend. None is empty, and a sequence has at most
 * two. Keys are distributed in the same way by their own lengths. It needs no communication.
 * cu_seqlens: [batch + 1] in host memory, not decreasing. NULL: each sequence has seqlen rows. With cu_seqlens, seqlen is 0. A
 * rank's tensor is [batch][its rows of a sequence][heads][dim], or packed [its rows of all][heads][dim]. Part p of n of a sequence
 * of length L begins at row min(L, block · floor(p · ceil(L / block) / n)).
 * It writes *count ranges, at most `capacity` (2 · batch always suffices). With ranges NULL and capacity 0, it writes only *count.
 * Errors: FA_INVALID_ARGUMENT, FA_UNSUPPORTED_FIELD. */
FA_API fa_status_t fa_cp_partition(const fa_cp_desc_t* spread, int32_t rank, int32_t ranks, const int32_t* cu_seqlens,
                                   int64_t batch, int64_t seqlen, fa_cp_range_t* ranges, int64_t capacity, int64_t* count);

/* ------------------------------------------------------------------------------------------------------------------- the calls */

/* Device memory (FA_CP_DEVICE_MEMORY). A call returns when its work is enqueued on the stream of its args or of the handle, and all
 * ranks have reported that theirs is. fa_synchronize or the stream's own functions then wait for it, without a limit. If a rank dies
 * meanwhile, only fa_cp_synchronize or the next call detects it. All pointers of the args are to device memory, as in the core.
 * cu_seqlens_q, cu_seqlens_k and causal_offset are read on the host, which waits for the stream. With FA_CP_SHARD_KEYS they are
 * read only if positions matter (causal, window, ALiBi). Arrays that are not read are not compared between ranks. */

/* fa_forward_ex over all ranks; collective. With one rank it is that call.
 *
 * FA_CP_SHARD_ROWS: q and o hold the rank's rows, k and v the rank's keys, as fa_cp_partition says. LSE has the rank's rows. Rows
 * of bias and mask are the rank's, in their order in q's sequence. Their columns are all keys of the sequence. alibi_slopes, sinks
 * and o_scale are whole. Dense strides follow from the local tensors. Operands: FA_OPERAND_LSE, _BIAS, _MASK, _ALIBI, _SINKS,
 * _CAUSAL_OFFSET, _CU_SEQLENS_Q, _CU_SEQLENS_K, _O_SCALE, _RNG_STATE. Dropout draws the mask of the whole.
 *
 * FA_CP_SHARD_KEYS: k, v and their description are the rank's own and may differ: seqlen_k, total_k, kv_batch, pages, scales,
 * seqused_k, cu_seqlens_k, leftpad_k, kv_batch_idx, the types of k and v, and bias and mask with the rank's own keys as columns. A
 * sequence's keys are those of rank 0, then those of rank 1, and so on. Positions count through all. q, o, LSE and everything else
 * are whole and the same on every rank.
 * Operands: those named above except FA_OPERAND_RNG_STATE, and FA_OPERAND_Q_DESCALE, _K_DESCALE, _V_DESCALE, _SEQUSED_Q,
 * _SEQUSED_K, _LEFTPAD_K, _KV_BATCH_IDX, _PAGE_TABLE.
 *
 * FA_UNSUPPORTED with more than one rank: FA_V_IN_K, FA_ALGORITHM_STANDARD and _FLASH1, other operands than those named, a
 * workspace, and dropout with FA_CP_SHARD_KEYS.
 * After FA_TIMEOUT, FA_PEER_FAILED of the transport, or memory that is exhausted during a call, ranks no longer know the state of
 * their peers. Outputs are undefined, and all further calls give FA_INVALID_STATE. Destroy the object and create a new one over a
 * new transport. */
FA_API fa_status_t fa_cp_forward(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread,
                                 const fa_forward_args_t* args);

/* fa_backward over all ranks, with FA_CP_SHARD_ROWS; collective. With one rank it is that call.
 *
 * args->forward: the args of fa_cp_forward, with o and LSE as it wrote them. The method may be another. dout, dlse and dq have the
 * rank's rows, dk and dv the rank's keys. The contributions of all ranks' rows to a key are added in f32 and rounded once. dsinks
 * is whole, and the same on every rank. Dense strides follow from the local tensors.
 *
 * Each of dq, dk, dv, dsinks and dlse is given by all ranks or by none. FA_BACKWARD_ACCUMULATE is the same on all ranks. For a tensor
 * of which it has no rows or keys, a rank gives any pointer that is not NULL. It is not followed.
 *
 * Bits: with Ulysses those of one device; with all-gather and the ring the same every time for the same number of ranks.
 * FA_UNSUPPORTED with more than one rank: dbias, FA_CP_SHARD_KEYS, and what fa_cp_forward refuses. Failures: as in
 * fa_cp_forward. */
FA_API fa_status_t fa_cp_backward(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread,
                                  const fa_backward_args_t* args);

/* Describes a call as text: the method, this rank's share, the bytes that it sends, and the least that the method could send. If the
 * call would be refused, the text says why, and the status is that of the call. It is not collective. op: FA_OP_FORWARD or
 * FA_OP_BACKWARD. args: those of the call, of which the int32 arrays are read. text: as in fa_explain. Errors: those of the call. */
FA_API fa_status_t fa_cp_explain(fa_cp_t cp, const fa_attention_desc_t* desc, const fa_cp_desc_t* spread, int32_t op,
                                 const void* args, char* text, uint64_t n);

/* Waits until all work is done that calls on the object have enqueued, no longer than the time limit. In host memory, calls are done
 * when they return, so it returns at once. It is not collective. Errors: as for fa_cp_forward; FA_DEVICE_ERROR with one rank. */
FA_API fa_status_t fa_cp_synchronize(fa_cp_t cp);

/* What this rank sent in the last call, the exchanges of statuses included. Either pointer may be NULL. */
FA_API fa_status_t fa_cp_traffic(fa_cp_t cp, uint64_t* bytes_sent, uint64_t* messages_sent);

#ifdef __cplusplus
}
#endif

#endif
