# cmake/house.cmake — how every target of the house is compiled, and what a room is
find_package(fmt REQUIRED)

# Warnings, sanitizers and the two include roots. Linked privately, so none of it reaches a user of attune.
add_library(attune_house INTERFACE)
target_compile_features(attune_house INTERFACE cxx_std_20)
target_include_directories(attune_house INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_options(attune_house INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wswitch -Werror=switch
  $<$<BOOL:${ATTUNE_WERROR}>:-Werror>
  # gcc 13 reports overruns in fmt 9 that do not exist, gcc 12 overlaps in std::string's operator+ (its bug 105651);
  # ASan looks for real ones.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds$<SEMICOLON>-Wno-stringop-overflow$<SEMICOLON>-Wno-restrict>
  # gcc takes the files of a batch for headers, in which types of an unnamed namespace would be a mistake.
  $<$<AND:$<BOOL:${ATTUNE_UNITY}>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)

if(ATTUNE_LLD)
  target_link_options(attune_house INTERFACE -fuse-ld=lld)
endif()
if(ATTUNE_SANITIZE)
  target_compile_options(attune_house INTERFACE
    -fsanitize=${ATTUNE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(attune_house INTERFACE -fsanitize=${ATTUNE_SANITIZE})
endif()
if(ATTUNE_FUZZ)
  target_link_options(attune_house INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Code that runs once: options, messages, tests. Optimising it takes most of a build's time: clang with ASan takes 62 s
# for one file of verbs, and 24 s without; gcc 29 s at -O3 for five, 21 at -O1 and 18 at -O0. The numbers of its lines
# take clang with ASan another fifth, and a test that fails says its line by itself.
add_library(attune_runs_once INTERFACE)
target_compile_options(attune_runs_once INTERFACE $<IF:$<BOOL:${ATTUNE_FAST_BUILD}>,-O0$<SEMICOLON>-g0,-O1>)

# fmt is private and part of our own archives, so that an installed attune asks its user for nothing. One file of ours
# compiles it: header-only, it takes a quarter of a build's time. A sanitized build is never installed and links fmt's
# library, which is not ours to instrument.
add_library(attune_fmt INTERFACE)
set(ATTUNE_OWN_FMT OFF)
if(ATTUNE_SANITIZE)
  target_link_libraries(attune_fmt INTERFACE fmt::fmt)
elseif(fmt_VERSION MATCHES "^9[.]")
  set(ATTUNE_OWN_FMT ON)
  target_include_directories(attune_fmt SYSTEM INTERFACE $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
else()
  target_link_libraries(attune_fmt INTERFACE fmt::fmt-header-only)
endif()

# attune_room(NAME FILE...): the static library of one room.
function(attune_room name)
  add_library(${name} STATIC ${ARGN})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:attune_house> $<BUILD_INTERFACE:attune_fmt>)
  set_property(GLOBAL APPEND PROPERTY ATTUNE_ROOMS ${name})
endfunction()

# attune_fuzzed(FILE...): what libFuzzer looks for ways through, of this folder. The rest does without its counters, which
# cost the oracle a third of its time. Such a file is in no batch.
function(attune_fuzzed)
  if(ATTUNE_FUZZ)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# attune_in_batches(TARGET [OFTEN] FILE...): where everything is compiled, these files of the target are compiled some
# fourteen at a time, as one file: headers are most of the work. In fast builds they are not optimised, under sanitizers
# two thirds of the work, unless they run OFTEN: what a call or a compilation loops in.
function(attune_in_batches target)
  set(options "")
  if("${ARGV1}" STREQUAL OFTEN)
    list(POP_FRONT ARGN)
  elseif(ATTUNE_FAST_BUILD)
    set(options -O0)
  endif()
  list(LENGTH ARGN count)
  math(EXPR batches "(${count} + 13) / 14")
  list(GET ARGN 0 first)
  string(MAKE_C_IDENTIFIER "${first}" group)
  set(at 0)
  foreach(file IN LISTS ARGN)
    math(EXPR batch "${at} * ${batches} / ${count}")
    set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${group}_${batch})
    math(EXPR at "${at} + 1")
    # CMake's own name for the file that includes the batch.
    set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir/Unity/unity_${group}_${batch}_cxx.cxx
      PROPERTIES COMPILE_OPTIONS "${options}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${ATTUNE_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()

# attune_unoptimised(FILE...): the same for files of this folder that are in no batch.
function(attune_unoptimised)
  if(ATTUNE_FAST_BUILD)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O0)
  endif()
endfunction()
