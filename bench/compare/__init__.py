"""libflashattn beside PyTorch's attention. compare_gpu.py and compare_cpu.py are the programs; what the latter adds is in cpu. judge, work,
table, runner and plot need no torch."""
