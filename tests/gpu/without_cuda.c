/* A program that has a GPU through this library alone: its memory from fa_malloc, its data through fa_copy, and not a line of CUDA. The
 * CPU backend says what is right. Exit status 77: no GPU here. */
#include <flashattn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 200, HEADS = 3, DIM = 72, SIZE = ROWS * HEADS * DIM };

static fa_handle_t open_backend(int32_t backend) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    fa_handle_t handle;
    info.backend = backend;
    if (fa_create(&handle, &info) == FA_OK) return handle;
    fprintf(stderr, "%s\n", fa_last_error(NULL));
    exit(1);
}

static void must(fa_handle_t handle, fa_status_t status) {
    if (status == FA_OK) return;
    fprintf(stderr, "%s: %s\n", fa_status_name(status), fa_last_error(handle));
    exit(1);
}

int main(void) {
    static float host[3][SIZE], want[SIZE], got[SIZE];
    void* device[4];
    char why[512];
    if (fa_backend_status(FA_BACKEND_CUDA, why, sizeof why) != FA_OK) {
        printf("skipped: %s\n", why);
        return 77;
    }
    uint32_t state = 1;
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < SIZE; i++) host[t][i] = (float)((state = state * 1664525u + 1013904223u) >> 16) / 32768.0f - 1.0f;

    fa_attention_desc_t desc = FA_ATTENTION_DESC_INIT;
    desc.q_dtype = FA_F32, desc.batch = 1, desc.heads_q = HEADS, desc.seqlen_q = desc.seqlen_k = ROWS, desc.dim_qk = DIM;
    desc.flags = FA_CAUSAL, desc.alignment = FA_ALIGN_TOP_LEFT;
    fa_handle_t cpu = open_backend(FA_BACKEND_CPU), gpu = open_backend(FA_BACKEND_CUDA);
    must(cpu, fa_forward(cpu, &desc, host[0], host[1], host[2], want));

    for (int t = 0; t < 4; t++) must(gpu, fa_malloc(gpu, sizeof got, &device[t]));
    for (int t = 0; t < 4; t++)
        if ((uintptr_t)device[t] % 256 != 0) return fprintf(stderr, "fa_malloc gave %p\n", device[t]), 1;
    for (int t = 0; t < 3; t++) must(gpu, fa_copy(gpu, device[t], host[t], sizeof got));
    must(gpu, fa_copy(gpu, device[3], device[0], sizeof got));
    must(gpu, fa_forward(gpu, &desc, device[0], device[1], device[2], device[3]));
    must(gpu, fa_synchronize(gpu));
    must(gpu, fa_copy(gpu, got, device[3], sizeof got));
    for (int t = 0; t < 4; t++) must(gpu, fa_free(gpu, device[t]));
    must(gpu, fa_destroy(gpu));
    must(cpu, fa_destroy(cpu));
    for (int i = 0; i < SIZE; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-5f)) return fprintf(stderr, "element %d is %g, expected %g\n", i, got[i], want[i]), 1;
    printf("%d elements agree\n", SIZE);
    return 0;
}
