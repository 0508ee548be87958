# Installation and the package configuration that find_package(tutti) reads.
#
#   cmake --install build --prefix DIR       libraries, headers, the program, the package files
#   find_package(tutti REQUIRED)             in another project
#   target_link_libraries(app tutti::tutti)  everything; or one module, e.g. tutti::comm
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The command line's own library is no part of what others link.
get_property(tutti_modules GLOBAL PROPERTY TUTTI_MODULES)
list(REMOVE_ITEM tutti_modules tutti_cli)

add_library(tutti_all INTERFACE)
add_library(tutti::tutti ALIAS tutti_all)
set_property(TARGET tutti_all PROPERTY EXPORT_NAME tutti)
target_link_libraries(tutti_all INTERFACE ${tutti_modules})

set(tutti_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tutti")
install(TARGETS tutti_all ${tutti_modules} EXPORT tuttiTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION "${tutti_package_dir}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/tutti" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h" PATTERN "cli" EXCLUDE PATTERN "kernels" EXCLUDE)
if(TARGET tutti_program)
  # The installed program finds LibTorch where the build found it (INSTALL_RPATH_USE_LINK_PATH drops
  # folders inside the project, and .venv is one).
  set_target_properties(tutti_program PROPERTIES INSTALL_RPATH "$<TARGET_FILE_DIR:torch>")
  install(TARGETS tutti_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/tuttiConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/tuttiConfig.cmake" INSTALL_DESTINATION "${tutti_package_dir}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tuttiConfig.cmake" "${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake"
  DESTINATION "${tutti_package_dir}")
