"""libflashattn beside PyTorch's attention on one GPU. compare_gpu.py is the program; judge, work, table, runner and plot need no torch."""
