# old_device.sh PROBE [TOOL]: a device for which the module holds no code.
. "$(dirname "$0")/common.sh"

sentence="this build of the cuda backend has no code for NVIDIA Old One (sm_61): no kernel image"
expect_refused FA_BACKEND_INCOMPATIBLE "$sentence" "$1"
[ -z "${2-}" ] || expect "$("$2" info | tr -s ' ')" "cuda 0 NVIDIA Old One sm_61" "$sentence"
