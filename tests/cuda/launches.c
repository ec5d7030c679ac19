/* The gradients of a call whose numbers occur once each, by the kernels of Hopper and by the general ones. Nothing lies where its pointers
 * point to. */
#include <flashattn.h>
#include <stdint.h>
#include <stdio.h>

static void* address(int n) { return (void*)(((uintptr_t)n + 1) << 32); }

int main(void) {
    fa_handle_t handle;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_forward_args_t forward = FA_FORWARD_ARGS_INIT;
    fa_backward_args_t backward = FA_BACKWARD_ARGS_INIT;
    const int64_t o_stride[] = {150016, 376, 72, 1}, lse_stride[] = {2016, 400, 1};
    char text[FA_TEXT_MAX];
    uint64_t bytes;
    int i, general;

    info.backend = FA_BACKEND_CUDA;
    info.memory = FA_MEMORY_DEVICE;
    if (fa_create(&handle, &info) != FA_OK) return printf("create: %s\n", fa_last_error(NULL)), 1;
    d.q_dtype = d.k_dtype = FA_BF16;
    d.batch = 3;
    d.heads_q = d.heads_k = 5;
    d.seqlen_q = d.seqlen_k = 384;
    d.dim_qk = d.dim_v = 64;
    d.flags = FA_SCALE_EXPLICIT;
    d.scale = .171875;
    d.operands = FA_OPERAND_LSE;
    d.strided = FA_STRIDED_O | FA_STRIDED_LSE;
    for (i = 0; i < 4; i++) d.o_stride[i] = o_stride[i];
    for (i = 0; i < 3; i++) d.lse_stride[i] = lse_stride[i];
    forward.q = address(0), forward.k = address(1), forward.v = address(2), forward.o = address(3), forward.lse = address(4);
    backward.forward = &forward;
    backward.dout = address(5), backward.dq = address(6), backward.dk = address(7), backward.dv = address(8);
    backward.workspace = address(9);
    if (fa_workspace_size(handle, &d, FA_OP_BACKWARD, &bytes) != FA_OK) return printf("size: %s\n", fa_last_error(handle)), 1;
    backward.workspace_size = bytes;
    if (fa_explain(handle, &d, FA_OP_BACKWARD, text, sizeof text) != FA_OK) return printf("explain: %s\n", fa_last_error(handle)), 1;
    printf("calls\n");
    for (general = 0; general < 2; general++) {
        backward.dv = (char*)address(8) + 8 * general; /* Hopper's own kernels take multiples of 16 bytes */
        if (fa_backward(handle, &d, &backward) != FA_OK) return printf("backward: %s\n", fa_last_error(handle)), 1;
    }
    return fa_destroy(handle) == FA_OK ? 0 : 1;
}
