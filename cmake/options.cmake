# cmake/options.cmake — every switch of the build, in one place
option(ATTUNE_TESTS "Build the tests and register the checks" ${PROJECT_IS_TOP_LEVEL})
option(ATTUNE_SHARED "Build libattune.so, for C and other languages" ${PROJECT_IS_TOP_LEVEL})
set(ATTUNE_PYTHON AUTO CACHE STRING "Build the Python extension: ON, OFF, or AUTO, where Python has nanobind")
option(ATTUNE_TOOLS "Build the command line `attune`" ${PROJECT_IS_TOP_LEVEL})
option(ATTUNE_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(ATTUNE_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})
option(ATTUNE_INSTALL "Install the libraries, the headers and the command line" ON)
option(ATTUNE_CUDA "The CUDA engine; it needs NVIDIA's driver and NVRTC to run, and neither to build" ON)
option(ATTUNE_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(ATTUNE_FAST_BUILD "Leave the command line and the tests unoptimised: a build takes two thirds of the time" OFF)
option(ATTUNE_UNITY "Compile files of the rooms some fourteen at a time and tests eight: half of the time, where all are compiled" OFF)
set(ATTUNE_GLIBC "" CACHE STRING "The oldest glibc that a wheel runs with, such as 2.28; empty: this machine's")
set(ATTUNE_FUZZ_SECONDS 4 CACHE STRING "How long each libFuzzer target runs as a test")
set(ATTUNE_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=LIST: address,undefined or thread")

# Every target is position independent, so that users can link it into their shared libraries.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
  endif()
  find_program(ATTUNE_LLD ld.lld DOC "A linker that takes LLVM's archives five times as fast, used when found")
  find_program(ATTUNE_CCACHE ccache DOC "Compiler cache, used when found")
  if(ATTUNE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Without pch_defines and time_macros, ccache declines every file that uses the precompiled test header; without
    # NOHASHDIR, it misses everything that the package's tests build in folders of their own.
    set(CMAKE_CXX_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 ${ATTUNE_CCACHE})
  endif()
endif()
