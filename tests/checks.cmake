# tests/checks.cmake — a test for each house rule, after a test that the check can refuse

# attune_check(NAME): tools/checks/NAME.py reads the tree and refuses what breaks its rule; --self-test shows that it
# can. attune_check(NAME FILE): the check NAME of tools/checks/FILE.py, which has several.
function(attune_check name)
  set(check ${PROJECT_SOURCE_DIR}/tools/checks/${name}.py)
  if(ARGC GREATER 1)
    set(check ${PROJECT_SOURCE_DIR}/tools/checks/${ARGV1}.py ${name})
  endif()
  add_test(NAME "house: ${name}" COMMAND ${Python3_EXECUTABLE} ${check} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  add_test(NAME "house: ${name} can refuse" COMMAND ${Python3_EXECUTABLE} ${check} --self-test)
  set_tests_properties("house: ${name}" "house: ${name} can refuse" PROPERTIES
    LABELS house SKIP_REGULAR_EXPRESSION "\\[skip\\]")
endfunction()

attune_check(format)
attune_check(layers)
attune_check(map)
attune_check(pyapi)
attune_check(shell)
foreach(name errors links operation optable snippets)
  attune_check(${name} pages)
endforeach()
foreach(name kernels lines ptx stems switches)
  attune_check(${name} sources)
endforeach()
