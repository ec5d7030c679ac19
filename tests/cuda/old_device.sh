# old_device.sh PROBE: a device for which the module holds no code.
. "$(dirname "$0")/common.sh"

expect_refused FA_BACKEND_INCOMPATIBLE "this build of the cuda backend has no code for NVIDIA Old One (sm_61): no kernel image" "$1"
