# cmake/zstd.cmake — zstd, which compresses bundles: ATTUNE_ZSTD_LINK and ATTUNE_ZSTD_INCLUDE, empty if it is not found
option(ATTUNE_ZSTD "Compress bundles with zstd, where it is found" ON)
set(ATTUNE_ZSTD_LINK "")
set(ATTUNE_ZSTD_STATE "none: bundles are not compressed (Debian's libzstd-dev)")
if(NOT ATTUNE_ZSTD)
  set(ATTUNE_ZSTD_STATE "off, as asked: bundles are not compressed")
  return()
endif()
find_path(ATTUNE_ZSTD_INCLUDE zstd.h)
# The archive if there is one, as for LLVM's dependencies: our programs run on a bare machine.
find_library(ATTUNE_ZSTD_LIBRARY NAMES libzstd.a zstd)
if(ATTUNE_ZSTD_INCLUDE AND ATTUNE_ZSTD_LIBRARY)
  # A plain path, so that users of an installed attune need to find nothing; hidden, as LLVM is.
  cmake_path(GET ATTUNE_ZSTD_LIBRARY FILENAME name)
  set(ATTUNE_ZSTD_LINK ${ATTUNE_ZSTD_LIBRARY} -Wl,--exclude-libs,${name})
  set(ATTUNE_ZSTD_STATE ${ATTUNE_ZSTD_LIBRARY})
endif()
