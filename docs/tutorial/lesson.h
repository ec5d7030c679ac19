/* What the tutorial's programs share: the end on an error, and numbers that look random but are the same everywhere. */
#include <flashattn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static fa_handle_t handle;

static inline void check(fa_status_t status) {
    if (status != FA_OK) fprintf(stderr, "%s: %s\n", fa_status_name(status), fa_last_error(handle)), exit(1);
}

/* The CPU backend's portable kernels, on one thread: what is counted is then the same on every machine. */
static inline void open_library(void) {
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.backend = FA_BACKEND_CPU;
    check(fa_create(&handle, &info));
    check(fa_param_set(handle, FA_PARAM_MAX_ISA, FA_ISA_GENERIC));
    check(fa_param_set(handle, FA_PARAM_THREADS, 1));
}

static inline float* floats(size_t count) {
    float* memory = calloc(count, sizeof(float));
    if (memory == NULL) exit(1);
    return memory;
}

/* Sums of four uniform numbers: nearly normal, of variance 1. */
static inline float* random_floats(size_t count, uint32_t seed) {
    float* x = floats(count);
    for (size_t i = 0; i < count; i++) {
        float sum = 0.0f;
        for (int n = 0; n < 4; n++) sum += (float)((seed = seed * 1664525u + 1013904223u) >> 8) / 16777216.0f - 0.5f;
        x[i] = sum * 1.7320508f;
    }
    return x;
}

static inline float largest_difference(const float* a, const float* b, size_t count) {
    float worst = 0.0f;
    for (size_t i = 0; i < count; i++) {
        const float difference = fabsf(a[i] - b[i]);
        if (!(difference <= worst)) worst = difference; /* which also finds what is not a number */
    }
    return worst;
}

/* The program's other output: the numbers behind the chapter's figure. */
static inline int wants_figure(int argc, char** argv) { return argc > 1 && strcmp(argv[1], "figure") == 0; }
