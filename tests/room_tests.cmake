# tests/room_tests.cmake — attune_test and attune_fuzz: how a room's tests are built and registered
find_package(Catch2 3 QUIET)
if(NOT Catch2_FOUND)
  find_package(Catch2 2.13 REQUIRED)
endif()
include(Catch)
set(ATTUNE_CATCH2_VERSION ${Catch2_VERSION} PARENT_SCOPE)

# The test main, the goldens, and as a precompiled header what most tests include: with this instead of Catch2 alone, and
# without lines' numbers, four tests took clang with ASan 8.8 s and not 13.0. Rooms are not in it: a test sees its own.
add_library(attune_catch STATIC golden.cpp main.cpp ${PROJECT_SOURCE_DIR}/tools/output/line_diff.cpp)
target_link_libraries(attune_catch PUBLIC attune_house Catch2::Catch2 PRIVATE attune_fmt attune_ir)
target_precompile_headers(attune_catch PRIVATE catch.h ${PROJECT_SOURCE_DIR}/include/attune/attune.h <fmt/format.h>
  <algorithm> <array> <cmath> <limits> <random> <sstream> <thread>)
# A precompiled header serves only targets with equal flags; -fPIC of libraries and -fPIE of programs differ.
set_target_properties(attune_catch PROPERTIES POSITION_INDEPENDENT_CODE OFF)
# Tests' own code runs once, and compiles in half the time without optimisation.
target_link_libraries(attune_catch PUBLIC attune_runs_once)
set_source_files_properties(golden.cpp PROPERTIES
  COMPILE_DEFINITIONS ATTUNE_TESTS="${CMAKE_CURRENT_SOURCE_DIR}")
# Catch2 2 gets its main from a macro that must come before the header. That file is then all of Catch2; sanitizing it
# would take as long as all other tests of a room, and it is not our code.
set_source_files_properties(main.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
if(ATTUNE_SANITIZE)
  set_source_files_properties(main.cpp PROPERTIES COMPILE_OPTIONS -fno-sanitize=all)
endif()

# What a test keeps compiled kernels in, if it is not a test of compiling: its time goes into compiling. A kernel's key
# covers what writes its code, so that a change of that finds nothing here.
set(ATTUNE_TEST_CACHE ${PROJECT_BINARY_DIR}/kernels CACHE PATH "Compiled kernels that tests share")
# Catch2 2 says that all is well where no test has the name that ctest asks for; ctest has cut one that holds a `;`.
set(attune_must_find "")
if(Catch2_VERSION VERSION_LESS 3)
  set(attune_must_find EXTRA_ARGS -w NoTests)
endif()
# Two properties, because a list does not survive catch_discover_tests.
set(attune_cached ENVIRONMENT ATTUNE_CACHE=${ATTUNE_TEST_CACHE} ENVIRONMENT_MODIFICATION ATTUNE_CACHE_SIZE=set:4G)

# attune_test_files(TARGET FILE...): where everything is compiled, these tests of the target are compiled some eight at a
# time: clang with ASan takes 86 s of a processor instead of 143 s. batch.py gives each file a namespace of its own, so
# that its names meet no other file's.
function(attune_test_files target)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  if(NOT ATTUNE_UNITY)
    target_sources(${target} PRIVATE ${ARGN})
    return()
  endif()
  set(script ${CMAKE_CURRENT_SOURCE_DIR}/batch.py)
  list(LENGTH ARGN count)
  math(EXPR batches "(${count} + 7) / 8")
  foreach(nth RANGE 1 ${batches})
    math(EXPR first "(${nth} - 1) * ${count} / ${batches}")
    math(EXPR length "${nth} * ${count} / ${batches} - ${first}")
    list(SUBLIST ARGN ${first} ${length} files)
    set(batch ${CMAKE_CURRENT_BINARY_DIR}/${target}_${nth}.cpp)
    add_custom_command(OUTPUT ${batch}
      COMMAND ${Python3_EXECUTABLE} ${script} ${batch} ${files}
      DEPENDS ${script} ${files}
      COMMENT "Tests as one file: ${target}_${nth}.cpp"
      VERBATIM)
    target_sources(${target} PRIVATE ${batch})
  endforeach()
endfunction()

# attune_test(ROOM STEMS stem... LIBS lib... [COST n] [CACHED] [COLD]): tests/ROOM/stem.test.cpp of each stem make
# test_ROOM; every TEST_CASE in it is a ctest named "ROOM/sentence" with the label ROOM. Tests with a higher COST start
# first, so that no long one is left for the end. CACHED tests share compiled kernels. COLD: those with the tag [cold]
# have no cache on disk.
function(attune_test room)
  cmake_parse_arguments(PARSE_ARGV 1 arg "CACHED;COLD" "COST" "STEMS;LIBS")
  list(TRANSFORM arg_STEMS PREPEND ${room}/)
  list(TRANSFORM arg_STEMS APPEND .test.cpp)
  add_executable(test_${room})
  attune_test_files(test_${room} ${arg_STEMS})
  target_link_libraries(test_${room} PRIVATE attune_catch ${arg_LIBS} attune_fmt)
  set_target_properties(test_${room} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_precompile_headers(test_${room} REUSE_FROM attune_catch)
  set(properties LABELS ${room} SKIP_REGULAR_EXPRESSION "\\[skip\\]" COST 0${arg_COST})
  set(warm "")
  if(arg_COLD)
    # ~[.] because a test spec also selects hidden tests, one of which takes hours.
    set(warm TEST_SPEC "~[cold]~[.]")
    catch_discover_tests(test_${room}
      TEST_SPEC "[cold]"
      TEST_PREFIX "${room}/"
      ${attune_must_find}
      PROPERTIES ${properties} ENVIRONMENT ATTUNE_CACHE=off)
  endif()
  if(arg_CACHED)
    list(APPEND properties ${attune_cached})
  endif()
  catch_discover_tests(test_${room}
    ${warm}
    TEST_PREFIX "${room}/"
    ${attune_must_find}
    PROPERTIES ${properties})
endfunction()

# attune_properties(STEMS stem... LIBS lib...): tests/fuzz/stem.fuzz.cpp of each stem make test_fuzz.
function(attune_properties)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "STEMS;LIBS")
  list(TRANSFORM arg_STEMS PREPEND fuzz/)
  list(TRANSFORM arg_STEMS APPEND .fuzz.cpp)
  add_executable(test_fuzz)
  attune_test_files(test_fuzz ${arg_STEMS})
  target_link_libraries(test_fuzz PRIVATE attune_catch ${arg_LIBS} attune_fmt)
  set_target_properties(test_fuzz PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_precompile_headers(test_fuzz REUSE_FROM attune_catch)
  catch_discover_tests(test_fuzz
    TEST_PREFIX "fuzz/"
    ${attune_must_find}
    PROPERTIES LABELS fuzz COST 60)
endfunction()

# attune_fuzz(STEM stem LIBS lib...): tests/fuzz/stem.fuzz.cpp, run by libFuzzer for ATTUNE_FUZZ_SECONDS.
# What libFuzzer finds stays in the build folder; tests/fuzz/corpus/stem holds the committed seeds, and
# tests/fuzz/stem.dict the words to put together.
function(attune_fuzz)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "STEM" "LIBS")
  if(NOT ATTUNE_FUZZ)
    return()
  endif()
  set(target fuzz_${arg_STEM})
  set(found ${CMAKE_CURRENT_BINARY_DIR}/${target}.found)
  file(MAKE_DIRECTORY ${found})
  add_executable(${target} fuzz/${arg_STEM}.fuzz.cpp)
  target_link_libraries(${target} PRIVATE attune_house ${arg_LIBS})
  target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  add_test(NAME "fuzz: ${arg_STEM}"
    COMMAND ${target} -max_total_time=${ATTUNE_FUZZ_SECONDS} -timeout=10 -max_len=4096 -print_final_stats=1
      -artifact_prefix=${found}/ -dict=${CMAKE_CURRENT_SOURCE_DIR}/fuzz/${arg_STEM}.dict
      ${found} ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${arg_STEM})
  set_tests_properties("fuzz: ${arg_STEM}" PROPERTIES LABELS fuzz)
endfunction()
