# cmake/attune-config.cmake — what find_package(attune) reads
include(${CMAKE_CURRENT_LIST_DIR}/attune-targets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/attune_add_bundle.cmake)
