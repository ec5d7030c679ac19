// Prints the compiled forward kernels as the GPU backends list them, for tools/kernel_table.py: where each lies in this program, by
// which its symbol gives its name, then what the host knows of it. The emulator's build stands in for the GPU's: the list is the same.
#include "../../src/emu/backend_emu.cc"

extern "C" const char __executable_start;

int main() {
    using namespace fa::gpu;
    const InstanceLists lists[] = {{{simt_instances(), {}, {}}},
                                   lists_of<MmaSync<F16>>(),
                                   lists_of<MmaSync<Bf16>>(),
                                   lists_of<MmaTf32>(),
                                   lists_of<MmaByte<F16>>(),
                                   lists_of<MmaByte<Bf16>>(),
                                   lists_of<MmaFp8>(),
                                   lists_of<MmaQuantised<F16>>(),
                                   lists_of<MmaQuantised<Bf16>>(),
                                   lists_of<MmaScaled<F16>>(),
                                   lists_of<MmaScaled<Bf16>>(),

                                   latent_lists<MmaLatent<F16>>(),
                                   latent_lists<MmaLatent<Bf16>>(),
                                   latent_lists<MmaLatentByte<Bf16>>(),
                                   latent_lists<MmaLatentMixed<Bf16>, 512>()};
    for (const InstanceLists& of_type : lists)
        for (const Instances& list : of_type.width)
            for (int i = 0; i < list.count; i++) {
                const Instance& k = list.list[i];
                const uintptr_t kernel = k.simt ? reinterpret_cast<uintptr_t>(k.simt) : reinterpret_cast<uintptr_t>(k.general);
                if (!kernel) continue;
                printf("%llx %d %d %d %d %d %lld\n", (unsigned long long)(kernel - uintptr_t(&__executable_start)), k.rows, k.columns,
                       k.keys, k.threads, k.resident, (long long)k.shared_bytes(k.columns));
            }
}
