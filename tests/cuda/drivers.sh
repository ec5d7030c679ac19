# drivers.sh PROBE FAKES: no driver, and drivers under which no device can be used.
. "$(dirname "$0")/common.sh"

probe=$1 fakes=$2
refused() {
    local sentence=$3
    LD_LIBRARY_PATH=$fakes/$1 expect_refused "$2" "$sentence" "$probe"
    expect "$(LD_LIBRARY_PATH=$fakes/$1 "$probe" 2)" "status: $2: $sentence"
}

refused too_old FA_BACKEND_INCOMPATIBLE "the NVIDIA driver serves CUDA up to 11.4: expected "
refused no_device FA_NO_DEVICE "the NVIDIA driver finds no device"
refused mismatch FA_BACKEND_INCOMPATIBLE "the NVIDIA driver does not start: "
if /sbin/ldconfig -p | grep -q 'libcuda\.so\.1'; then
    echo "a driver is installed here: its absence is not shown"
else
    refused none FA_NO_DEVICE "no NVIDIA driver is installed: libcuda.so.1 cannot be loaded"
fi
