# What a user of the installed tree sees: header, libraries, tool, pkg-config file, CMake package, licence, manual page.
include(CMakePackageConfigHelpers)

# Everything finds everything else by relative paths, so that the tree may be moved. From full paths, for a folder may be given as one.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashattn)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH FA_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" FA_PC_PREFIX "${FA_PC_PREFIX}")
file(RELATIVE_PATH FA_PC_INCLUDEDIR ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
set(FA_PC_LIBRARIES ${FA_SYSTEM_LIBRARIES})
list(TRANSFORM FA_PC_LIBRARIES PREPEND -l REGEX "^[^/]")
get_property(bundled GLOBAL PROPERTY FA_BUNDLED_LIBRARIES)
list(TRANSFORM bundled PREPEND -l)
list(APPEND FA_PC_LIBRARIES ${bundled})
string(JOIN " " FA_PC_LIBRARIES ${FA_PC_LIBRARIES})

configure_file(flashattn.pc.in flashattn.pc @ONLY)
configure_package_config_file(cmake/flashattnConfig.cmake.in flashattnConfig.cmake INSTALL_DESTINATION ${package_dir}
  PATH_VARS CMAKE_INSTALL_LIBDIR)
# A program compiled against 0.x runs with every later 0.y of the same SONAME, which is the major version.
write_basic_package_version_file(flashattnConfigVersion.cmake COMPATIBILITY SameMajorVersion)

# Each library has an export of its own: a distribution may ship either without the other.
install(TARGETS flashattn EXPORT flashattnTargets)
install(TARGETS flashattn_static EXPORT flashattnStaticTargets)
install(FILES include/flashattn.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT flashattnTargets NAMESPACE flashattn:: DESTINATION ${package_dir})
install(EXPORT flashattnStaticTargets NAMESPACE flashattn:: DESTINATION ${package_dir})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashattnConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/flashattnConfigVersion.cmake
        DESTINATION ${package_dir})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashattn.pc DESTINATION ${pkgconfig_dir})
if(TARGET flashattn_cli)
  file(RELATIVE_PATH library_from_tool ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(flashattn_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${library_from_tool}")
  install(TARGETS flashattn_cli)
  install(FILES docs/flashattn.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
