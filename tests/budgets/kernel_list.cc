// Prints the compiled forward kernels as the GPU backends list them, for tools/kernel_table.py: where each lies in this program, by
// which its symbol gives its name, then what the host knows of it. The emulator's build stands in for the GPU's: the list is the same.
#include "../../src/emu/backend_emu.cc"

extern "C" const char __executable_start;

int main() {
    using namespace fa::gpu;
    for (const ForwardFamily* const family : forward_families().list)
        if (family)
            family->kernels(
                [](void*, const KernelEntry& k) {
                    printf("%llx %d %d %d %d %d %lld\n", (unsigned long long)(uintptr_t(k.kernel) - uintptr_t(&__executable_start)), k.rows,
                           k.columns, k.keys, k.threads, k.resident, (long long)k.shared_bytes);
                },
                nullptr);
}
