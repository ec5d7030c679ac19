# Builds for the machine FA_CROSS, aarch64 or s390x, with Debian's cross compiler; its programs run here under QEMU.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FA_CROSS)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${FA_CROSS})
set(CMAKE_C_COMPILER ${FA_CROSS}-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER ${FA_CROSS}-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-${FA_CROSS} -L /usr/${FA_CROSS}-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
