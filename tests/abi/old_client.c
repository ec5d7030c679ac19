/* A program built against the header as it was in 0.2, linked to the library as it is now. */
#include <flashattn.h>
#include <math.h>
#include <stdio.h>

enum { ROWS = 3, KEYS = 5, DIM = 4 };

static int check(int ok, const char* what) {
    if (!ok) fprintf(stderr, "%s\n", what);
    return !ok;
}

/* Causal, bottom-right, straight from the formula. */
static void expected(const float* q, const float* k, const float* v, float* o, float* lse) {
    for (int i = 0; i < ROWS; i++) {
        double sum = 0, row[DIM] = {0};
        for (int j = 0; j <= i + KEYS - ROWS; j++) {
            double s = 0, p;
            for (int c = 0; c < DIM; c++) s += (double)q[i * DIM + c] * k[j * DIM + c];
            p = exp(s / sqrt(DIM));
            sum += p;
            for (int c = 0; c < DIM; c++) row[c] += p * v[j * DIM + c];
        }
        for (int c = 0; c < DIM; c++) o[i * DIM + c] = (float)(row[c] / sum);
        lse[i] = (float)log(sum);
    }
}

static float distance(const float* a, const float* b, int n) {
    float most = 0;
    for (int i = 0; i < n; i++) most = fmaxf(most, fabsf(a[i] - b[i]));
    return most;
}

static fa_status_t one_by_one(void* user, int64_t n, void (*body)(void* arg, int64_t i), void* arg) {
    ++*(int*)user;
    for (int64_t i = 0; i < n; i++) body(arg, i);
    return FA_OK;
}

/* The gradient of the sum of all outputs: what the rows give to v adds up to one for each. */
static int backward(fa_handle_t handle, const fa_attention_desc_t* desc, const fa_forward_args_t* forward) {
    float dout[ROWS * DIM], dv[KEYS * DIM], sum = 0;
    fa_backward_args_t b = FA_BACKWARD_ARGS_INIT;
    for (int i = 0; i < ROWS * DIM; i++) dout[i] = 1;
    b.forward = forward, b.dout = dout, b.dv = dv;
    if (check(fa_backward(handle, desc, &b) == FA_OK, fa_last_error(handle))) return 1;
    for (int j = 0; j < KEYS; j++) sum += dv[j * DIM];
    return check(fabsf(sum - ROWS) < 1e-5f, "dv differs");
}

/* Two sequences that share q, k and v, on two threads of the client's own. */
static int twice(fa_handle_t handle, fa_attention_desc_t desc, const float* q, const float* k, const float* v, const float* want) {
    const int64_t shared[4] = {0, DIM, DIM, 1};
    float o[2 * ROWS * DIM];
    desc.operands = 0, desc.batch = 2, desc.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V;
    for (int i = 0; i < 4; i++) desc.q_stride[i] = desc.k_stride[i] = desc.v_stride[i] = shared[i];
    if (check(fa_param_set(handle, FA_PARAM_THREADS, 2) == FA_OK, fa_last_error(handle))) return 1;
    if (check(fa_forward(handle, &desc, q, k, v, o) == FA_OK, fa_last_error(handle))) return 1;
    return check(distance(o, want, ROWS * DIM) < 1e-6f && distance(o + ROWS * DIM, want, ROWS * DIM) < 1e-6f, "strides differ");
}

int main(void) {
    float q[ROWS * DIM], k[KEYS * DIM], v[KEYS * DIM], o[ROWS * DIM], lse[ROWS], want_o[ROWS * DIM], want_lse[ROWS];
    fa_handle_t handle;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    fa_device_info_t device;
    uint64_t bytes = 0;
    int64_t fact = 0;
    int wrong = 0, calls = 0;

    for (int i = 0; i < ROWS * DIM; i++) q[i] = sinf((float)i);
    for (int i = 0; i < KEYS * DIM; i++) k[i] = cosf((float)i), v[i] = sinf(2.f * (float)i);
    expected(q, k, v, want_o, want_lse);

    wrong += check(fa_version() >= FA_VERSION, "version");
    info.backend = FA_BACKEND_CPU, info.parallel_for = one_by_one, info.parallel_user = &calls;
    if (check(fa_create(&handle, &info) == FA_OK, "create")) return 1;

    d.q_dtype = FA_F32;
    d.batch = d.heads_q = 1;
    d.seqlen_q = ROWS;
    d.seqlen_k = KEYS;
    d.dim_qk = DIM;
    d.flags = FA_CAUSAL;
    d.alignment = FA_ALIGN_BOTTOM_RIGHT;
    wrong += check(fa_forward(handle, &d, q, k, v, o) == FA_OK, fa_last_error(handle));
    wrong += check(distance(o, want_o, ROWS * DIM) < 1e-6f, "fa_forward differs");

    d.operands = FA_OPERAND_LSE;
    a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse;
    wrong += check(fa_supports(handle, &d, FA_OP_FORWARD) == FA_OK, fa_last_error(handle));
    wrong += check(fa_workspace_size(handle, &d, FA_OP_FORWARD, &bytes) == FA_OK, fa_last_error(handle));
    wrong += check(fa_forward_ex(handle, &d, &a) == FA_OK, fa_last_error(handle));
    wrong += check(distance(lse, want_lse, ROWS) < 1e-6f, "LSE differs");
    wrong += backward(handle, &d, &a);
    wrong += check(fa_extent(&d, FA_OP_FORWARD, &a, offsetof(fa_forward_args_t, k), &bytes) == FA_OK, fa_last_error(NULL));
    wrong += check(bytes == sizeof k, "extent of k");

    wrong += twice(handle, d, q, k, v, want_o);
    wrong += check(calls > 0, "parallel_for was not called");
    wrong += check(fa_param_get(handle, FA_INFO_BACKEND, &fact) == FA_OK && fact == FA_BACKEND_CPU, "FA_INFO_BACKEND");
    d.heads_q = -1;
    wrong += check(fa_forward(handle, &d, q, k, v, o) == FA_INVALID_ARGUMENT, "negative heads");
    device.struct_size = sizeof device;
    wrong += check(fa_device_info(FA_BACKEND_CPU, 0, &device) == FA_OK && device.struct_size == sizeof device, "device");
    wrong += check(fa_destroy(handle) == FA_OK, "destroy");
    return wrong;
}
