# compile_commands.json for editors and clang's tools: CMake's own has an entry a module and GCC's
# options; this has one a source. That of build/ is found from the checkout's root, by a link.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND)
  set(tutti_database "${PROJECT_BINARY_DIR}/editor/compile_commands.json")
  add_custom_command(OUTPUT "${tutti_database}"
    COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tools/lint/database.py" "${PROJECT_BINARY_DIR}"
    DEPENDS "${PROJECT_BINARY_DIR}/compile_commands.json" "${PROJECT_SOURCE_DIR}/tools/lint/database.py"
    COMMENT "Writing the compilation database" VERBATIM)
  add_custom_target(tutti_editor ALL DEPENDS "${tutti_database}")
  if(PROJECT_BINARY_DIR STREQUAL "${PROJECT_SOURCE_DIR}/build")
    file(CREATE_LINK build/editor/compile_commands.json "${PROJECT_SOURCE_DIR}/compile_commands.json" SYMBOLIC)
  endif()
endif()
