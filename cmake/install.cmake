# What a user of the installed tree sees: header, libraries, tool, pkg-config file, CMake package, licence, manual pages. In components, as
# packages divide it: runtime, dev, tools, doc, cp and cp_dev, and cuda and hip, which their modules name.
include(CMakePackageConfigHelpers)

# Everything finds everything else by relative paths, so that the tree may be moved. From full paths, for a folder may be given as one.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashattn)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH FA_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" FA_PC_PREFIX "${FA_PC_PREFIX}")
file(RELATIVE_PATH FA_PC_INCLUDEDIR ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
get_property(bundled GLOBAL PROPERTY FA_BUNDLED_LIBRARIES)
string(JOIN " " FA_PC_LIBRARIES ${FA_SYSTEM_LIBRARIES} ${bundled})

foreach(package flashattn flashattn-static)
  configure_file(${package}.pc.in ${package}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${package}.pc DESTINATION ${pkgconfig_dir} COMPONENT dev)
endforeach()
# `pkg-config --static` prints -lflashattn before all else, which is the shared library where both are installed. A name that only the
# archive has chooses it, with every linker and build system.
file(CREATE_LINK libflashattn.a ${CMAKE_CURRENT_BINARY_DIR}/libflashattn-static.a SYMBOLIC)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/libflashattn-static.a DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
configure_package_config_file(cmake/flashattnConfig.cmake.in flashattnConfig.cmake INSTALL_DESTINATION ${package_dir}
  PATH_VARS CMAKE_INSTALL_LIBDIR)
# A program compiled against 0.x runs with every later 0.y of the same SONAME, which is the major version.
write_basic_package_version_file(flashattnConfigVersion.cmake COMPATIBILITY SameMajorVersion)

# Each library has an export of its own: a distribution may ship either without the other.
install(TARGETS flashattn EXPORT flashattnTargets LIBRARY COMPONENT runtime NAMELINK_COMPONENT dev)
install(TARGETS flashattn_static EXPORT flashattnStaticTargets COMPONENT dev)
install(FILES include/flashattn.h include/flashattn.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
install(EXPORT flashattnTargets NAMESPACE flashattn:: DESTINATION ${package_dir} COMPONENT dev)
install(EXPORT flashattnStaticTargets NAMESPACE flashattn:: DESTINATION ${package_dir} COMPONENT dev)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashattnConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/flashattnConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT dev)
if(TARGET flashattn_cp)
  configure_file(flashattn-cp.pc.in flashattn-cp.pc @ONLY)
  set_target_properties(flashattn_cp PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS flashattn_cp EXPORT flashattnCpTargets LIBRARY COMPONENT cp NAMELINK_COMPONENT cp_dev)
  install(FILES include/flashattn_cp.h include/flashattn_cp_mpi.h include/flashattn_cp_nccl.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cp_dev)
  install(EXPORT flashattnCpTargets NAMESPACE flashattn:: DESTINATION ${package_dir} COMPONENT cp_dev)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashattn-cp.pc DESTINATION ${pkgconfig_dir} COMPONENT cp_dev)
endif()
if(TARGET flashattn_cli)
  file(RELATIVE_PATH library_from_tool ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(flashattn_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${library_from_tool}")
  install(TARGETS flashattn_cli COMPONENT tools)
  install(FILES docs/flashattn.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
  install(DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cli/completions/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT tools)
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
file(GLOB pages docs/*.md)
install(FILES README.md CHANGELOG.md ${pages} DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)

# The manual pages of functions and structs are written from the headers' comments.
find_package(Python3 3.9 COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND)
  set(script ${CMAKE_CURRENT_SOURCE_DIR}/tools/generate_man.py)
  set(man3 ${CMAKE_CURRENT_BINARY_DIR}/man3)
  file(GLOB headers ${CMAKE_CURRENT_SOURCE_DIR}/include/*.h)
  add_custom_command(OUTPUT ${man3}/flashattn.3 COMMAND ${Python3_EXECUTABLE} -B ${script} ${man3} VERBATIM COMMENT "Writing manual pages"
    DEPENDS ${script} tools/header_manual.py ${headers} docs/flashattn.1)
  add_custom_target(flashattn_man ALL DEPENDS ${man3}/flashattn.3)
  install(DIRECTORY ${man3}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man3 COMPONENT dev)
else()
  message(STATUS "No Python: manual pages of section 3 are left out")
endif()
file(GLOB examples CONFIGURE_DEPENDS examples/*.c examples/*.cc examples/*.h)
install(FILES ${examples} examples/CMakeLists.txt examples/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT dev)
# And the programs that the tutorial and the guides explain, which the same project builds.
foreach(pages tutorial guides)
  file(GLOB programs CONFIGURE_DEPENDS docs/${pages}/*.c docs/${pages}/*.h)
  install(FILES ${programs} DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples/${pages} COMPONENT dev)
endforeach()
