// OpenMP's threads, as a pool that can be chosen. The only file that includes OpenMP; a build without it has stubs here.
#pragma once
#include <stdint.h>

namespace fa {
namespace cpu {

bool built_with_openmp();

// False in a child of fork() whose parent had asked for any of this: runtimes hang there.
bool openmp_usable();
// The most threads that the program wants a region of the calling thread to have (OMP_NUM_THREADS, omp_set_num_threads()), in a
// child what the parent was told last; INT64_MAX in a build without OpenMP.
int64_t openmp_limit();
bool inside_openmp_region();

// Outside of a region: runs body(arg, 0) … body(arg, n − 1) on a team of `size` threads, or of fewer where the system refuses them.
// stack_bytes: of a thread, as the environment asks for it; 0: the system's default.
void run_team(int64_t size, uint64_t stack_bytes, int64_t n, void (*body)(void* arg, int64_t i), void* arg);

}  // namespace cpu
}  // namespace fa
