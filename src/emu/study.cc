// The study baselines' kernels, on the emulator, in a unit of their own as those of merge_splits.cc.
#include "emu/rt_emu.h"
#include "gpu/simt/study.h"
