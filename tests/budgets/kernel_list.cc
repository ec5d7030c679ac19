// Prints the compiled forward kernels as the GPU backends list them, for tools/kernel_table.py: where each lies in this program, by
// which its symbol gives its name, then what the host knows of it. The emulator's build stands in for the GPU's: the list is the same.
#include "../../src/emu/backend_emu.cc"

extern "C" const char __executable_start;

int main() {
    using namespace fa::gpu;
    const Instances lists[] = {{kSimt, sizeof kSimt / sizeof *kSimt}, mma_f16_instances(),      mma_bf16_instances(),
                               mma_f32_instances(),                   mma_byte_f16_instances(), mma_byte_bf16_instances()};
    for (const Instances& list : lists)
        for (int i = 0; i < list.count; i++) {
            const Instance& k = list.list[i];
            printf("%llx %d %d %d %d %d %lld\n", (unsigned long long)(reinterpret_cast<uintptr_t>(k.kernel) - uintptr_t(&__executable_start)),
                   k.rows, k.columns, k.keys, k.threads, k.resident, (long long)k.shared_bytes(k.columns));
        }
}
