# The kernels for 64-bit ARM: with NEON alone, and with SVE vectors of each length.
emulate(Neon.Checks cortex-a72 quick "*FewKeys/generic:*FewKeys/neon:Tails*/generic:*Tails*/neon:NotANumber*:Infinity*:HostileParameters.*")
emulate(Neon.Random cortex-a72 quick Shard/Random.*/0)
foreach(bits 128 256 512)
  math(EXPR bytes "${bits} / 8")
  set(cpu max,sve-default-vector-length=${bytes})
  emulate(Sve${bits}.Checks ${cpu} quick "*FewKeys/sve:*GroupedHeads/sve")
  emulate(Sve${bits}.Random ${cpu} quick Shard/Random.*/1 FLASHATTN_MAX_ISA=sve)
  emulate(Sve${bits}.All ${cpu} full "Isa/*/sve:*EmptyRows*/sve:NotANumber*:Infinity*:Hostile*:Study.*:Count.*:Shard/Random.*/2" FLASHATTN_MAX_ISA=sve)
endforeach()
# With products of bf16, which such a CPU prefers: table, bytes of a vector, the instruction set's word.
foreach(table neon:16:neon_bf16 sve256:32:sve_bf16 sve512:64:sve_bf16)
  string(REPLACE ":" ";" table ${table})
  list(GET table 0 name)
  list(GET table 1 bytes)
  list(GET table 2 word)
  set(cpu max,sve-default-vector-length=${bytes})
  emulate(Bf16.${name}.Checks ${cpu} quick "Isa/Native.Agrees*/${word}:Isa/Native.Largest*/${word}:*GroupedHeads/${word}:NotANumber*:Infinity*")
  emulate(Bf16.${name}.Random ${cpu} quick Shard/Random.*/2)
  emulate(Bf16.${name}.All ${cpu} full "Isa/*/${word}:*EmptyRows*/${word}:Hostile*:Decode*:*Matrix*:Types/FewRows*/${word}*:Shard/Random.*/3")
endforeach()

# Vectors that no table is for: the library must see that, and offer NEON.
add_test(NAME Cross.OtherLengths COMMAND fa_check --gtest_filter=Isa/Tails.GroupedHeads/sve)
set_tests_properties(Cross.OtherLengths PROPERTIES LABELS quick TIMEOUT 60 ENVIRONMENT "QEMU_CPU=max,sve-default-vector-length=128"
  PASS_REGULAR_EXPRESSION "max_isa is sve: this CPU or build offers generic, neon")
