# cmake/older_glibc.cmake — attune_older_glibc(): what is linked on this machine runs with ATTUNE_GLIBC too
#
# A linker takes the newest version of each symbol, so that a library built here asks for this machine's glibc. It is given
# stubs instead, which have only the symbols and versions of ATTUNE_GLIBC; older_glibc.c defines what those lack.
function(attune_older_glibc)
  if(NOT ATTUNE_GLIBC)
    return()
  endif()
  enable_language(C)
  set(stubs ${PROJECT_BINARY_DIR}/glibc-${ATTUNE_GLIBC})
  execute_process(COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/older_glibc.py ${ATTUNE_GLIBC} ${stubs}
    ${CMAKE_C_COMPILER} COMMAND_ERROR_IS_FATAL ANY)
  add_library(attune_older_glibc OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/older_glibc.c)
  set_target_properties(attune_older_glibc PROPERTIES C_VISIBILITY_PRESET hidden)
  foreach(target IN LISTS ARGN)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:attune_older_glibc>)
    target_link_options(${target} PRIVATE -L${stubs})
    # Until 2.34 they were libraries of their own.
    target_link_libraries(${target} PRIVATE -Wl,--no-as-needed ${stubs}/libpthread.so.0 ${stubs}/libdl.so.2
      -Wl,--as-needed)
  endforeach()
endfunction()
