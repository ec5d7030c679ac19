# fa_seal_module(TARGET): the module's file has a note of itself, with a checksum of its code and data where the build can run what writes
# it.
function(fa_seal_module target)
  set(src ${PROJECT_SOURCE_DIR}/src)
  if(NOT TARGET fa_seal)
    add_executable(fa_seal ${PROJECT_SOURCE_DIR}/tools/seal_module.cc ${src}/os/linux/module_image.cc ${src}/os/linux/module_seal.cc)
    target_include_directories(fa_seal PRIVATE ${PROJECT_SOURCE_DIR}/include ${src})
  endif()
  target_sources(${target} PRIVATE ${src}/backend/module_note.cc)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${src})
  if(NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR)
    add_custom_command(TARGET ${target} POST_BUILD COMMAND fa_seal $<TARGET_FILE:${target}> VERBATIM)
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS $<TARGET_FILE:fa_seal>)  # whose reckoning may have changed
  endif()
endfunction()

# fa_add_backend(NAME OBJECTS FOLDER LIBRARY…): the objects, those of target fa_NAME, become the module libflashattn-NAME.so, or, where
# FA_BUNDLE names the backend, part of the library itself. FOLDER has those of the libraries that are not the system's.
function(fa_add_backend name objects folder)
  list(TRANSFORM ARGN PREPEND -l OUTPUT_VARIABLE libraries)  # a bare name might be a target's
  if(name IN_LIST FA_BUNDLE)
    set(targets flashattn flashattn_static)
    string(TOUPPER ${name} NAME)
    target_compile_definitions(fa_core PRIVATE FA_BUNDLE_${NAME})
    target_compile_definitions(fa_${name} PRIVATE FA_BACKEND_ENTRY=fa_bundled_${name})
    foreach(target ${targets})
      target_sources(${target} PRIVATE ${objects})
    endforeach()
    target_link_directories(flashattn_static INTERFACE $<BUILD_INTERFACE:${folder}>)
    set_property(GLOBAL APPEND PROPERTY FA_BUNDLED_LIBRARIES ${libraries})
  else()
    set(targets fa_${name}_module)
    set(map ${PROJECT_SOURCE_DIR}/src/backend/module.map)
    add_library(fa_${name}_module MODULE ${objects})
    set_target_properties(fa_${name}_module PROPERTIES OUTPUT_NAME flashattn-${name}
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/module LINKER_LANGUAGE C LINK_DEPENDS ${map})
    target_link_options(fa_${name}_module PRIVATE
      -Wl,--version-script=${map} -Wl,--as-needed -Wl,--no-undefined -Wl,-z,relro,-z,now,-z,noexecstack)
    fa_seal_module(fa_${name}_module)
    install(TARGETS fa_${name}_module LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/flashattn COMPONENT ${name})
  endif()
  foreach(target ${targets})
    set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON)  # CMake's would name the current folder
    target_link_directories(${target} PRIVATE ${folder})
    target_link_libraries(${target} PRIVATE ${libraries})
  endforeach()
endfunction()
