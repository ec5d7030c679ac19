/* Calls by the kernels of Hopper and by the general ones, each after it was asked how large its workspace is. Nothing lies where their
 * pointers point to. An argument names one of the calls: only how its question is answered is printed. */
#include <flashattn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
    kBatch = 3,
    kHeads = 5,
    kRows = 384, /* of a prefill */
    kKeys = 8192 /* of a decode */
};
static const struct {
    const char* name;
    int32_t op, q_dtype, kv_dtype;
    int64_t rows, keys, dim;
    uint64_t operands;
} kCalls[] = {
    {"prefill", FA_OP_FORWARD, FA_BF16, FA_BF16, kRows, kRows, 128, FA_OPERAND_LSE},
    {"general", FA_OP_FORWARD, FA_F32, FA_F32, kRows, kRows, 128, FA_OPERAND_SINKS},
    {"decode", FA_OP_FORWARD, FA_BF16, FA_BF16, 1, kKeys, 128, FA_OPERAND_SEQUSED_K},
    {"decode f32", FA_OP_FORWARD, FA_F32, FA_F32, 1, kKeys, 64, 0},
    {"mask", FA_OP_FORWARD, FA_F16, FA_F16, kRows, kRows, 64, FA_OPERAND_MASK},
    {"bias", FA_OP_FORWARD, FA_BF16, FA_BF16, kRows, kRows, 64, FA_OPERAND_BIAS | FA_OPERAND_DEVICE_STATUS},
    {"bytes", FA_OP_FORWARD, FA_BF16, FA_E4M3, kRows, kRows, 128, FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE},
    {"blocks", FA_OP_FORWARD, FA_F16, FA_Q8_0, kRows, kRows, 128, 0},
    {"lists", FA_OP_FORWARD, FA_BF16, FA_BF16, kRows, kRows, 128, FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT},
    {"wide", FA_OP_FORWARD, FA_BF16, FA_BF16, kRows, kRows, 512, 0},
    {"scores", FA_OP_FORWARD, FA_F16, FA_F16, 1, kKeys, 64, FA_OPERAND_SCORES},
    {"merge", FA_OP_MERGE, FA_BF16, FA_BF16, kRows, kRows, 64, FA_OPERAND_LSE},
    {"append", FA_OP_APPEND_KV, FA_BF16, FA_BF16, 1, kKeys, 64, FA_OPERAND_SEQUSED_K},
    {"rotary", FA_OP_ROTARY, FA_BF16, FA_BF16, kRows, kRows, 64, 0},
    {"gradients", FA_OP_BACKWARD, FA_BF16, FA_BF16, kRows, kRows, 64, FA_OPERAND_LSE},
    {"gradients f32", FA_OP_BACKWARD, FA_F32, FA_F32, kRows, kRows, 64, FA_OPERAND_LSE},
    {"gradients of bias", FA_OP_BACKWARD, FA_BF16, FA_BF16, kRows, kRows, 128, FA_OPERAND_LSE | FA_OPERAND_BIAS | FA_OPERAND_SINKS},
};

static void* address(int n) { return (void*)(((uintptr_t)n + 1) << 32); }

static fa_attention_desc_t describe(int i) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = kCalls[i].q_dtype;
    d.k_dtype = d.v_dtype = kCalls[i].kv_dtype;
    d.batch = kBatch;
    d.heads_q = d.heads_k = kHeads;
    d.seqlen_q = kCalls[i].rows;
    d.seqlen_k = kCalls[i].keys;
    d.dim_qk = d.dim_v = kCalls[i].dim;
    d.operands = kCalls[i].operands;
    d.list_max = d.operands & FA_OPERAND_KEY_LIST ? kRows / 128 : 0;
    d.list_rows = d.list_keys = d.list_max ? 128 : 0;
    d.list_heads = d.list_max ? kHeads : 0;
    if (d.operands & FA_OPERAND_SCORES) {
        d.scores_stage = FA_SCORES_PROBABILITY;
        d.scores_stride[3] = 1;
        d.scores_stride[2] = d.seqlen_k;
        d.scores_stride[1] = d.seqlen_q * d.seqlen_k;
        d.scores_stride[0] = kHeads * d.scores_stride[1];
    }
    return d;
}

/* Operands are the pointers from lse on, in the order of their bits. */
static fa_forward_args_t forward_args(uint64_t operands, uint64_t workspace) {
    fa_forward_args_t args = FA_FORWARD_ARGS_INIT;
    int i;
    args.q = address(0), args.k = address(1), args.v = address(2), args.o = address(3);
    for (i = 0; i < 30; i++)
        if (operands >> i & 1) {
            void* const p = address(20 + i);
            memcpy((char*)&args + offsetof(fa_forward_args_t, lse) + (size_t)i * sizeof p, &p, sizeof p);
        }
    args.workspace = workspace ? address(9) : NULL;
    args.workspace_size = workspace;
    return args;
}

static fa_status_t call(fa_handle_t handle, const fa_attention_desc_t* desc, int32_t op, uint64_t workspace, int unaligned) {
    fa_forward_args_t forward = forward_args(desc->operands, op == FA_OP_BACKWARD ? 0 : workspace);
    fa_backward_args_t backward = FA_BACKWARD_ARGS_INIT;
    fa_merge_args_t merge = FA_MERGE_ARGS_INIT;
    fa_append_kv_args_t append = FA_APPEND_KV_ARGS_INIT;
    fa_rotary_args_t rotary = FA_ROTARY_ARGS_INIT;
    const int64_t dense[] = {kRows * kHeads * desc->dim_qk, kHeads * desc->dim_qk, desc->dim_qk, 1};
    int i;
    switch (op) {
        case FA_OP_FORWARD: return fa_forward_ex(handle, desc, &forward);
        case FA_OP_BACKWARD:
            backward.forward = &forward;
            backward.dout = address(5), backward.dq = address(6), backward.dk = address(7);
            backward.dv = (char*)address(8) + 8 * unaligned; /* Hopper's own kernels take multiples of 16 bytes */
            if (desc->strided & FA_STRIDED_K)                /* where heads share k and v, gradients of their own have dense ones */
                for (i = 0; i < 4; i++) backward.dk_stride[i] = backward.dv_stride[i] = dense[i];
            if (desc->operands & FA_OPERAND_BIAS) backward.dbias = address(10);
            if (desc->operands & FA_OPERAND_SINKS) backward.dsinks = address(11);
            backward.workspace = address(9), backward.workspace_size = workspace;
            return fa_backward(handle, desc, &backward);
        case FA_OP_MERGE:
            merge.parts = 2;
            merge.o_parts = address(0), merge.lse_parts = address(1), merge.o = address(2), merge.lse = address(3);
            return fa_merge(handle, desc, &merge);
        case FA_OP_APPEND_KV:
            append.seqlen_new = 1;
            append.k_new = address(0), append.v_new = address(1), append.k = address(2), append.v = address(3);
            append.seqused_k = address(4);
            return fa_append_kv(handle, desc, &append);
        default:
            rotary.x = address(0), rotary.out = address(1), rotary.cos = address(2), rotary.sin = address(3);
            rotary.max_position = kRows, rotary.rotary_dim = 64;
            return fa_rotary(handle, desc, &rotary);
    }
}

/* The numbers of this one occur once each. */
static int odd_gradients(fa_handle_t handle) {
    const int64_t o_stride[] = {150016, 376, 72, 1}, lse_stride[] = {2016, 400, 1};
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    uint64_t bytes;
    int i;
    d.q_dtype = d.k_dtype = FA_BF16;
    d.batch = kBatch;
    d.heads_q = d.heads_k = kHeads;
    d.seqlen_q = d.seqlen_k = kRows;
    d.dim_qk = d.dim_v = 64;
    d.flags = FA_SCALE_EXPLICIT;
    d.scale = .171875;
    d.operands = FA_OPERAND_LSE;
    d.strided = FA_STRIDED_O | FA_STRIDED_LSE;
    for (i = 0; i < 4; i++) d.o_stride[i] = o_stride[i];
    for (i = 0; i < 3; i++) d.lse_stride[i] = lse_stride[i];
    if (fa_workspace_size(handle, &d, FA_OP_BACKWARD, &bytes) != FA_OK) return printf("size: %s\n", fa_last_error(handle)), 1;
    printf("odd gradients\n");
    for (i = 0; i < 2; i++)
        if (call(handle, &d, FA_OP_BACKWARD, bytes, i) != FA_OK) return printf("backward: %s\n", fa_last_error(handle)), 1;
    return 0;
}

/* Of k and v that all heads share, by f16, which no other backward here has. */
static int shared_gradients(fa_handle_t handle) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    uint64_t bytes;
    d.q_dtype = FA_F16;
    d.batch = kBatch;
    d.heads_q = d.heads_k = kHeads;
    d.seqlen_q = d.seqlen_k = kRows;
    d.dim_qk = 128;
    d.operands = FA_OPERAND_LSE;
    d.strided = FA_STRIDED_K | FA_STRIDED_V;
    d.k_stride[0] = d.v_stride[0] = kRows * d.dim_qk, d.k_stride[1] = d.v_stride[1] = d.dim_qk;
    d.k_stride[3] = d.v_stride[3] = 1;
    printf("size: shared gradients\n");
    if (fa_workspace_size(handle, &d, FA_OP_BACKWARD, &bytes) != FA_OK) return printf("size: %s\n", fa_last_error(handle)), 1;
    printf("call: shared gradients\n");
    return call(handle, &d, FA_OP_BACKWARD, bytes, 0) != FA_OK && (printf("shared gradients: %s\n", fa_last_error(handle)), 1);
}

int main(int argc, char** argv) {
    fa_handle_t handle;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    char text[FA_TEXT_MAX];
    uint64_t bytes;
    int i;

    info.backend = FA_BACKEND_CUDA;
    info.memory = FA_MEMORY_DEVICE;
    if (fa_create(&handle, &info) != FA_OK) return printf("create: %s\n", fa_last_error(NULL)), 1;
    for (i = 0; i < (int)(sizeof kCalls / sizeof *kCalls); i++) {
        const fa_attention_desc_t d = describe(i);
        fa_status_t status;
        if (argc > 1 && strcmp(argv[1], kCalls[i].name) != 0) continue;
        printf("questions: %s\n", kCalls[i].name);
        if (fa_supports(handle, &d, kCalls[i].op) != FA_OK || fa_explain(handle, &d, kCalls[i].op, text, sizeof text) != FA_OK)
            return printf("explain: %s\n", fa_last_error(handle)), 1;
        printf("size: %s\n", kCalls[i].name);
        bytes = 0;
        status = fa_workspace_size(handle, &d, kCalls[i].op, &bytes);
        if (argc > 1) return printf("%s: %s: %llu\n", fa_status_name(status), fa_last_error(handle), (unsigned long long)bytes), 0;
        if (status != FA_OK) return printf("size: %s\n", fa_last_error(handle)), 1;
        printf("call: %s\n", kCalls[i].name);
        if (call(handle, &d, kCalls[i].op, bytes, 0) != FA_OK) return printf("%s: %s\n", kCalls[i].name, fa_last_error(handle)), 1;
    }
    return shared_gradients(handle) || odd_gradients(handle) || fa_destroy(handle) != FA_OK;
}
