# tests/checks.cmake — a test for each house rule, after a test that the check can refuse

# attune_check(NAME): tools/checks/NAME.py reads the tree and refuses what breaks its rule; --self-test shows that it
# can.
function(attune_check name)
  add_test(NAME "house: ${name}"
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/checks/${name}.py WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  add_test(NAME "house: ${name} can refuse"
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/checks/${name}.py --self-test)
  set_tests_properties("house: ${name}" "house: ${name} can refuse" PROPERTIES
    LABELS house SKIP_REGULAR_EXPRESSION "\\[skip\\]")
endfunction()

attune_check(errors)
attune_check(format)
attune_check(kernels)
attune_check(layers)
attune_check(lines)
attune_check(links)
attune_check(map)
attune_check(operation)
attune_check(optable)
attune_check(shell)
attune_check(ptx)
attune_check(pyapi)
attune_check(snippets)
attune_check(stems)
attune_check(switches)
