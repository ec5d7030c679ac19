# Enables C and C++ where the library can be built: elsewhere one sentence says so, instead of dozens of errors. A system's name is looked
# at before its compilers, which may be missing, too.
set(supported "64-bit Linux, GCC or Clang")
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "CMAKE_SYSTEM_NAME is \"${CMAKE_SYSTEM_NAME}\": expected ${supported}")
endif()
set(FA_SYSTEM_FOLDERS posix linux)  # of src/os
enable_language(C)
enable_language(CXX)
# A compiler for another system may be given by its path alone, which leaves the system's name as it is.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_QUIET ON)
check_cxx_source_compiles("#if !defined __linux__ || !defined __GNUC__\n#error\n#endif\nint main() {}" FA_FOR_LINUX)
unset(CMAKE_REQUIRED_QUIET)
if(NOT FA_FOR_LINUX)
  message(FATAL_ERROR "CMAKE_CXX_COMPILER is \"${CMAKE_CXX_COMPILER}\": expected ${supported}")
endif()
if(NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  message(FATAL_ERROR "CMAKE_SIZEOF_VOID_P is \"${CMAKE_SIZEOF_VOID_P}\": expected 8, ${supported}")
endif()
