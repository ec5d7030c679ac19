/* Decoding as a serving engine does it: the work of one token (append to the cache, then attention over it) is captured in one CUDA graph
 * and replayed token by token. What changes from token to token lies in device memory: the new rows, and how long each sequence is. At the
 * end the same attention is computed in one call, a prefill, and compared.
 * Build: cc decode_loop.c $(pkg-config --cflags --libs flashattn) -lcudart -lm */
#include <cuda_runtime.h>
#include <flashattn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 4, HEADS_Q = 8, HEADS_KV = 2, DIM = 64, TOKENS = 128, PAGE = 16, COLUMNS = TOKENS / PAGE, PAGES = BATCH * COLUMNS };
enum { ROW_Q = HEADS_Q * DIM, ROW_KV = HEADS_KV * DIM }; /* floats of a token */

static fa_handle_t handle;

static void cuda(cudaError_t status) {
    if (status != cudaSuccess) fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status)), exit(1);
}
static void fa(fa_status_t status) {
    if (status != FA_OK) fprintf(stderr, "%s: %s\n", fa_status_name(status), fa_last_error(handle)), exit(1);
}

static void* device(size_t bytes, const void* from) {
    void* memory;
    cuda(cudaMalloc(&memory, bytes));
    if (from != NULL) cuda(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
    return memory;
}

/* [BATCH][TOKENS][row] of random numbers. */
static float* random_tokens(size_t row) {
    static unsigned state = 1;
    const size_t count = BATCH * TOKENS * row;
    float* host = malloc(count * sizeof(float));
    if (host == NULL) exit(1);
    for (size_t i = 0; i < count; i++) host[i] = (float)((state = state * 1664525u + 1013904223u) >> 16) / 32768.0f - 1.0f;
    float* memory = device(count * sizeof(float), host);
    free(host);
    return memory;
}

/* Token t of every sequence, from [BATCH][TOKENS][row] to [BATCH][row] or back. */
static void copy_token(float* to, const float* from, int is_back, size_t row, int t, cudaStream_t stream) {
    const size_t bytes = row * sizeof(float), all = TOKENS * bytes;
    if (is_back) to += (size_t)t * row;
    else from += (size_t)t * row;
    cuda(cudaMemcpy2DAsync(to, is_back ? all : bytes, from, is_back ? bytes : all, bytes, BATCH, cudaMemcpyDeviceToDevice, stream));
}

int main(void) {
    char why[512];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t step;
    if (fa_backend_status(FA_BACKEND_CUDA, why, sizeof why) != FA_OK) return printf("skipped: %s\n", why), 77;
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CUDA, info.stream = stream;
    if (fa_create(&handle, &info) != FA_OK) return fprintf(stderr, "%s\n", fa_last_error(NULL)), 1;

    /* Where each sequence's keys lie, and for each token how many there are: before it, and (the next row) with it. */
    int32_t table[PAGES], lengths[TOKENS + 1][BATCH];
    for (int n = 0; n < PAGES; n++) table[n] = PAGES - 1 - n;
    for (int t = 0; t <= TOKENS; t++)
        for (int b = 0; b < BATCH; b++) lengths[t][b] = t;
    int32_t *pages = device(sizeof table, table), *all_lengths = device(sizeof lengths, lengths),
            *used = device(2 * sizeof lengths[0], NULL);

    const float *all_q = random_tokens(ROW_Q), *all_k = random_tokens(ROW_KV), *all_v = random_tokens(ROW_KV);
    const size_t o_bytes = sizeof(float) * BATCH * TOKENS * ROW_Q, cache_bytes = sizeof(float) * PAGES * PAGE * ROW_KV;
    float *decoded = device(o_bytes, NULL), *prefilled = device(o_bytes, NULL);
    float *q = device(sizeof(float) * BATCH * ROW_Q, NULL), *o = device(sizeof(float) * BATCH * ROW_Q, NULL);
    float *k = device(sizeof(float) * BATCH * ROW_KV, NULL), *v = device(sizeof(float) * BATCH * ROW_KV, NULL);
    void *k_cache = device(cache_bytes, NULL), *v_cache = device(cache_bytes, NULL);

    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = BATCH, desc.heads_q = HEADS_Q, desc.heads_k = HEADS_KV, desc.dim_qk = DIM;
    desc.seqlen_q = 1, desc.seqlen_k = TOKENS, desc.page_size = PAGE, desc.num_pages = PAGES;
    desc.operands = FA_OPERAND_SEQUSED_K | FA_OPERAND_PAGE_TABLE;
    fa_append_kv_args_t append = FA_APPEND_KV_ARGS_INIT;
    append.k_new = k, append.v_new = v, append.seqlen_new = 1, append.k = k_cache, append.v = v_cache;
    append.seqused_k = used, append.page_table = pages;
    fa_forward_args_t attend = FA_FORWARD_ARGS_INIT;
    attend.q = q, attend.k = k_cache, attend.v = v_cache, attend.o = o, attend.seqused_k = used + BATCH, attend.page_table = pages;
    fa(fa_workspace_size(handle, &desc, FA_OP_FORWARD, &attend.workspace_size)); /* a graph needs one of its own */
    if (attend.workspace_size > 0) attend.workspace = device(attend.workspace_size, NULL);

    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    fa(fa_append_kv(handle, &desc, &append));
    fa(fa_forward_ex(handle, &desc, &attend));
    cuda(cudaStreamEndCapture(stream, &graph));
    cuda(cudaGraphInstantiate(&step, graph, 0));
    for (int t = 0; t < TOKENS; t++) {
        copy_token(q, all_q, 0, ROW_Q, t, stream); /* an engine's own kernels write these */
        copy_token(k, all_k, 0, ROW_KV, t, stream);
        copy_token(v, all_v, 0, ROW_KV, t, stream);
        cuda(cudaMemcpyAsync(used, all_lengths + t * BATCH, 2 * sizeof lengths[0], cudaMemcpyDeviceToDevice, stream));
        cuda(cudaGraphLaunch(step, stream));
        copy_token(decoded, o, 1, ROW_Q, t, stream);
    }

    fa_attention_desc_t whole = FA_ATTENTION_DESC_INIT;
    whole.q_dtype = FA_F32, whole.batch = BATCH, whole.heads_q = HEADS_Q, whole.heads_k = HEADS_KV, whole.dim_qk = DIM;
    whole.seqlen_q = whole.seqlen_k = TOKENS, whole.flags = FA_CAUSAL, whole.alignment = FA_ALIGN_BOTTOM_RIGHT;
    fa(fa_forward(handle, &whole, all_q, all_k, all_v, prefilled));
    fa(fa_synchronize(handle));

    static float one[BATCH * TOKENS * ROW_Q], other[BATCH * TOKENS * ROW_Q];
    cuda(cudaMemcpy(one, decoded, sizeof one, cudaMemcpyDeviceToHost));
    cuda(cudaMemcpy(other, prefilled, sizeof other, cudaMemcpyDeviceToHost));
    float worst = 0.0f;
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        const float difference = fabsf(one[i] - other[i]);
        if (difference > worst || isnan(difference)) worst = difference; /* which stays, once it is not a number */
    }
    printf("%d tokens of %d sequences, one graph launch a token: largest difference from one prefill %g\n", TOKENS, BATCH, worst);
    cuda(cudaGraphExecDestroy(step));
    cuda(cudaGraphDestroy(graph));
    fa(fa_destroy(handle));
    return !(worst <= 1e-5f);
}
