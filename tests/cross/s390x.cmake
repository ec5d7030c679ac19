# The portable kernels where the high byte of a number comes first.
emulate(Generic.Checks "" quick "*ByteOrder*:Types/Blocks.*:AppendBlocks.*:Append.*:Convert.*:Factors.*:*FewKeys/generic:Tails*/generic:NotANumber*:Infinity*")
emulate(Generic.Random "" quick Shard/Random.*/0)
