/* What the examples judge themselves by: attention as the textbook writes it, one row at a time, in double precision. */
#ifndef PLAIN_H
#define PLAIN_H

#include <flashattn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Numbers in [-1, 1), the same on every machine. */
static inline void fill(float* x, long n, unsigned seed) {
    for (long i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1;
    }
}

/* o = softmax(q · kᵀ / sqrt(dim)) v for one row of one head. Key j lies at k + j * step, its value at v + j * step; keep, if it is given,
 * says which keys take part. Without a key o is 0. */
static inline void plain_row(const float* q, const float* k, const float* v, long keys, long dim, long step,
                             const unsigned char* keep, double* o) {
    double sum = 0;
    for (long d = 0; d < dim; d++) o[d] = 0;
    for (long j = 0; j < keys; j++) {
        double score = 0;
        if (keep && !keep[j]) continue;
        for (long d = 0; d < dim; d++) score += (double)q[d] * k[j * step + d];
        const double p = exp(score / sqrt((double)dim)); /* these scores are small: no maximum is needed */
        sum += p;
        for (long d = 0; d < dim; d++) o[d] += p * v[j * step + d];
    }
    for (long d = 0; d < dim && sum > 0; d++) o[d] /= sum;
}

/* The larger of `worst` and the distance of any element from what the plain loop says. */
static inline double farthest(double worst, const float* got, const double* expected, long n) {
    for (long i = 0; i < n; i++) {
        const double off = fabs(got[i] - expected[i]);
        if (!(off <= worst)) worst = off; /* NaN is the farthest of all */
    }
    return worst;
}

/* What main returns. */
static inline int verdict(double worst, double allowed) {
    const int good = worst <= allowed;
    printf("largest difference from the plain loop: %.1e, %s\n", worst, good ? "as it should be" : "too much");
    return good ? 0 : 1;
}

/* Ends the example when a call fails. */
static inline void need(fa_status_t status, fa_handle_t handle) {
    if (status == FA_OK) return;
    fprintf(stderr, "%s: %s\n", fa_status_name(status), fa_last_error(handle));
    exit(1);
}

#endif
