// What tools/check_budgets compiles to learn how fast a machine compiles: unrolled sums of products, as kernels have them. Budgets stand
// on the seconds that this text takes, so it never changes.
template <int n>
__global__ void products(const float* a, const float* b, float* c, int count) {
    float sums[n][n] = {};
    for (int k = threadIdx.x; k < count; k += 32) {
        float x[n], y[n];
#pragma unroll
        for (int i = 0; i < n; ++i) x[i] = a[k * n + i], y[i] = b[k * n + i] > 0 ? exp2f(b[k * n + i]) : b[i];
#pragma unroll
        for (int i = 0; i < n; ++i)
#pragma unroll
            for (int j = 0; j < n; ++j) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
    }
#pragma unroll
    for (int i = 0; i < n; ++i)
#pragma unroll
        for (int j = 0; j < n; ++j) c[(threadIdx.x * n + i) * n + j] = fminf(sums[i][j], sums[j][i]);
}

template __global__ void products<8>(const float*, const float*, float*, int);
template __global__ void products<12>(const float*, const float*, float*, int);
template __global__ void products<16>(const float*, const float*, float*, int);
template __global__ void products<20>(const float*, const float*, float*, int);
template __global__ void products<24>(const float*, const float*, float*, int);
