# The kernels for RISC-V's vectors of each length, and of 1024 bits, half of which rvv512 uses; and the portable ones on a CPU without V.
foreach(bits 128 256 512 1024)
  set(cpu rv64,v=true,vlen=${bits})
  set(label full)
  if(bits EQUAL 256)
    set(label quick)
  endif()
  emulate(Rvv${bits}.Checks ${cpu} ${label} "*FewKeys/rvv:*GroupedHeads/rvv:NotANumber*:Infinity*")
  emulate(Rvv${bits}.Random ${cpu} ${label} Shard/Random.*/1)
  emulate(Rvv${bits}.All ${cpu} full "Isa/*/rvv:*EmptyRows*/rvv:Types/*:Hostile*:Decode*:Append*:Convert*:Study.*:Count.*:Shard/Random*/2")
endforeach()
emulate(Generic.Checks rv64 quick "*FewKeys/generic:Tails*/generic:NotANumber*:Infinity*")
emulate(Generic.Random rv64 full Shard/Random.*/0)

# A CPU without V: the library must see that, and offer the portable kernels alone.
add_test(NAME Cross.WithoutVectors COMMAND fa_check --gtest_filter=Isa/Tails.GroupedHeads/rvv)
set_tests_properties(Cross.WithoutVectors PROPERTIES LABELS quick TIMEOUT 60 ENVIRONMENT QEMU_CPU=rv64
  PASS_REGULAR_EXPRESSION "max_isa is rvv: this CPU or build offers generic")
