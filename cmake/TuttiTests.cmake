# tutti_ctests(TARGET [EACH | MOST n] PROPERTY VALUE...): the tests of a binary as ctest sees them, with
# these properties: a suite is one, test_NAME.SUITE, since each process pays LibTorch's start, a quarter
# of a second; with MOST a suite of more than n tests is several, test_NAME.SUITE.1 and so on; with EACH
# each test is, SUITE.TEST, for those without LibTorch that start ranks of their own. So is each that
# tests/slow_tests.txt names, and has the label "slow". What ran is in build/tests/results, an XML file
# of GoogleTest's each.
function(tutti_ctests target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "EACH" "LABELS;MOST" "")
  if(NOT arg_MOST)
    set(arg_MOST 1000000)
  endif()
  set(file "${CMAKE_CURRENT_BINARY_DIR}/${target}_ctests.cmake")
  file(GENERATE OUTPUT "${file}" CONTENT "set(name [[${target}]])
set(binary [[$<TARGET_FILE:${target}>]])
set(told_by [[${file}]])
set(list [[${CMAKE_CURRENT_BINARY_DIR}/${target}_list.cmake]])
set(each ${arg_EACH})
set(most ${arg_MOST})
set(label [[${arg_LABELS}]])
set(slow_tests [[${PROJECT_SOURCE_DIR}/tests/slow_tests.txt]])
set(results [[${PROJECT_BINARY_DIR}/tests/results]])
set(folder [[${PROJECT_SOURCE_DIR}]])
set(properties [[${arg_UNPARSED_ARGUMENTS}]])
include([[${PROJECT_SOURCE_DIR}/cmake/ListTests.cmake]])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${file}")
endfunction()
