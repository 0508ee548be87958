# Installation and the package configuration that find_package(tutti) reads.
#
#   cmake --install build --prefix DIR       libraries, headers, the program, the package files
#   find_package(tutti REQUIRED)             in another project
#   target_link_libraries(app tutti::tutti)  everything; or one module, e.g. tutti::comm
#   pkg-config --cflags --libs tutti         the same without CMake
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
# Headers: the groups in tutti/ that users include, and what these include.
file(GLOB tutti_headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/tutti/*.h")
set(tutti_to_read ${tutti_headers})
while(tutti_to_read)
  list(POP_FRONT tutti_to_read header)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${header}")
  file(STRINGS "${PROJECT_SOURCE_DIR}/${header}" lines REGEX "^#include \"tutti/")
  list(TRANSFORM lines REPLACE "^#include \"([^\"]*)\".*" "\\1")
  list(REMOVE_ITEM lines ${tutti_headers})
  list(APPEND tutti_headers ${lines})
  list(APPEND tutti_to_read ${lines})
endwhile()
foreach(header IN LISTS tutti_headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES "${PROJECT_SOURCE_DIR}/${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}")
endforeach()

# A LibTorch that lies in the checkout is installed too, so that what is installed needs no checkout
# and may be moved; one that lies elsewhere stays where it is.
cmake_path(SET tutti_torch_root NORMALIZE "${Torch_DIR}/../../..")  # ROOT/share/cmake/Torch
cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${tutti_torch_root}" NORMALIZE tutti_torch_inside)
string(REGEX MATCH "^/usr/(lib/([^/]+/)?)?$" tutti_torch_system "${tutti_torch_root}")
option(TUTTI_INSTALL_LIBTORCH "Install LibTorch too" ${tutti_torch_inside})
set(tutti_torch_libraries "$<TARGET_FILE_DIR:torch>")
set(tutti_torch_config "${Torch_DIR}")
cmake_path(GET TORCH_LIBRARY PARENT_PATH tutti_pc_libraries)
set(tutti_pc_includes "${TORCH_INCLUDE_DIRS}")
# What engine nccl is linked with. pip's wheels lie beside LibTorch, and are found and installed with it.
cmake_path(SET tutti_wheels NORMALIZE "${tutti_torch_root}/../nvidia")
set(tutti_pc_nvidia "")
set(tutti_nccl_folder "")
if(TUTTI_WITH_NCCL)
  get_target_property(tutti_cudart tutti::cudart IMPORTED_LOCATION)
  set(tutti_pc_nvidia "${TUTTI_NCCL_LIBRARY}" "${tutti_cudart}")
  cmake_path(IS_PREFIX tutti_wheels "${TUTTI_NCCL_LIBRARY}" tutti_nccl_beside)
  if(NOT tutti_nccl_beside)
    cmake_path(GET TUTTI_NCCL_LIBRARY PARENT_PATH tutti_nccl_folder)
  endif()
endif()
set(tutti_nvidia_libraries "${tutti_pc_nvidia}")
list(TRANSFORM tutti_nvidia_libraries REPLACE "/[^/]*$" "")
if(TUTTI_INSTALL_LIBTORCH)
  if(tutti_torch_root MATCHES "^/usr/(local/)?$" OR NOT EXISTS "${tutti_torch_root}lib/libtorch.so")
    message(FATAL_ERROR "TUTTI_INSTALL_LIBTORCH: ${Torch_DIR} is not in a folder of LibTorch's own")
  endif()
  set(tutti_torch_place "${CMAKE_INSTALL_LIBDIR}/tutti/libtorch")
  file(RELATIVE_PATH tutti_from_bin "/${CMAKE_INSTALL_BINDIR}" "/${tutti_torch_place}/lib")
  set(tutti_torch_libraries "$ORIGIN/${tutti_from_bin}")
  set(tutti_torch_config "\${CMAKE_CURRENT_LIST_DIR}/../../tutti/libtorch/share/cmake/Torch")
  set(tutti_pc_libraries "\${libdir}/tutti/libtorch/lib")
  string(REPLACE "${tutti_torch_root}" "\${libdir}/tutti/libtorch/" tutti_pc_includes
    "${tutti_pc_includes}")
  string(REPLACE "${tutti_wheels}" "\${libdir}/tutti/nvidia" tutti_pc_nvidia "${tutti_pc_nvidia}")
  string(REPLACE "${tutti_wheels}" "${tutti_torch_libraries}/../../nvidia" tutti_nvidia_libraries
    "${tutti_nvidia_libraries}")
  install(CODE "set(tutti_from \"${tutti_torch_root}\")
set(tutti_to \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${tutti_torch_place}\")")
  install(SCRIPT "${CMAKE_CURRENT_LIST_DIR}/InstallTorch.cmake")
else()
  install(CODE "message(STATUS \"tutti needs the LibTorch in ${tutti_torch_root} where it is now\")")
endif()
if(TARGET tutti_program)
  # Told, for INSTALL_RPATH_USE_LINK_PATH drops folders inside the project, and .venv is one.
  if(NOT tutti_torch_system)
    set_target_properties(tutti_program PROPERTIES
      INSTALL_RPATH "${tutti_torch_libraries};${tutti_nvidia_libraries}")
  endif()
  install(TARGETS tutti_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/tuttiConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/tuttiConfig.cmake" INSTALL_DESTINATION "${tutti_package_dir}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tuttiConfig.cmake" "${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/TuttiCuda.cmake" "${CMAKE_CURRENT_LIST_DIR}/TuttiParquet.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/TuttiWebP.cmake"
  DESTINATION "${tutti_package_dir}")

# tutti.pc: the modules, highest first, then what they were built with.
list(REVERSE tutti_modules)
list(TRANSFORM tutti_modules PREPEND "-l")
list(JOIN tutti_modules " " tutti_pc_modules)
list(REMOVE_ITEM tutti_pc_includes /usr/include)  # searched without being told, and in its place
list(TRANSFORM tutti_pc_includes PREPEND "-isystem ")
list(JOIN tutti_pc_includes " " tutti_pc_includes)
set(tutti_pc_engines "")
if(TUTTI_WITH_MPI)
  list(APPEND tutti_pc_engines ${MPI_CXX_LIBRARIES})
endif()
foreach(library IN LISTS tutti_pc_nvidia)
  cmake_path(GET library PARENT_PATH folder)
  list(APPEND tutti_pc_engines "${library}" "-Wl,-rpath,${folder}")
endforeach()
if(TARGET torch_cuda)
  list(APPEND tutti_pc_engines -Wl,--allow-shlib-undefined)
endif()
list(JOIN tutti_pc_engines " " tutti_pc_engines)
file(RELATIVE_PATH tutti_pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" tutti_pc_prefix "${tutti_pc_prefix}")
configure_file("${CMAKE_CURRENT_LIST_DIR}/tutti.pc.in" "${PROJECT_BINARY_DIR}/tutti.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/tutti.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
