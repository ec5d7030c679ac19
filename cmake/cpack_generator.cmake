# Read by cpack for each generator. An archive's tree has no prefix; a package's has the one that was configured, for it is compiled in.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX ${CPACK_FA_PREFIX})
endif()
