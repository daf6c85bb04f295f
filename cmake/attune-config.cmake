# cmake/attune-config.cmake — what find_package(attune) reads
include(${CMAKE_CURRENT_LIST_DIR}/attune-targets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/attune_add_bundle.cmake)

# A linker would only name a file: the CPU engine's archives of LLVM are those of the machine.
get_target_property(attune_archives attune::attune_codegen INTERFACE_LINK_LIBRARIES)
list(FILTER attune_archives INCLUDE REGEX "^/")
foreach(archive IN LISTS attune_archives)
  if(NOT EXISTS ${archive} AND NOT attune_FIND_QUIETLY)
    message(STATUS "attune: attune::attune links LLVM, and there is no ${archive}: install what Debian and Ubuntu call "
      "llvm-19-dev, libzstd-dev and zlib1g-dev. attune::c needs none of them")
    break()
  endif()
endforeach()
unset(attune_archives)
