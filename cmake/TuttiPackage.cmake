# What an installation has beside the libraries, and the packages that `make package` makes of it: a
# tarball, and a .deb where LibTorch is Debian's own.
set(tutti_share "${PROJECT_BINARY_DIR}/share")
set(tutti_docs "${tutti_share}/tutti.1" "${tutti_share}/tutti.bash" "${tutti_share}/_tutti")
add_custom_command(OUTPUT ${tutti_docs}
  COMMAND ${CMAKE_COMMAND} -E make_directory "${tutti_share}"
  COMMAND tutti_program man-page > "${tutti_share}/tutti.1"
  COMMAND tutti_program completion bash > "${tutti_share}/tutti.bash"
  COMMAND tutti_program completion zsh > "${tutti_share}/_tutti"
  DEPENDS tutti_program COMMENT "Printing the man page and the completions" VERBATIM)
# All that is installed, and nothing of tests, examples and benchmarks.
get_property(tutti_libraries GLOBAL PROPERTY TUTTI_MODULES)
add_custom_target(tutti_installed ALL DEPENDS ${tutti_docs} ${tutti_libraries})

install(FILES "${tutti_share}/tutti.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
install(FILES "${tutti_share}/tutti.bash" RENAME tutti
  DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
install(FILES "${tutti_share}/_tutti" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions")
install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" RENAME copyright DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
  PATTERN "__pycache__" EXCLUDE)

set(CPACK_PACKAGE_VENDOR "The tutti maintainers")
set(CPACK_PACKAGE_CONTACT "${CPACK_PACKAGE_VENDOR}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_OUTPUT_FILE_PREFIX "${PROJECT_BINARY_DIR}/package")
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR TGZ)
if(tutti_torch_system AND EXISTS /etc/debian_version)
  list(APPEND CPACK_GENERATOR DEB)
endif()
string(TOLOWER "${CMAKE_SYSTEM_NAME}" tutti_system)
set(CPACK_PACKAGE_FILE_NAME "tutti-${PROJECT_VERSION}-${tutti_system}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # what the program needs
# What programs that are linked with the libraries need; another LibTorch may lay its classes out differently.
string(REGEX MATCH "^([0-9]+)[.]([0-9]+)" tutti_torch_series "${Torch_VERSION}")
math(EXPR tutti_torch_next "${CMAKE_MATCH_2} + 1")
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libtorch-dev (>= ${tutti_torch_series}), \
libtorch-dev (<< ${CMAKE_MATCH_1}.${tutti_torch_next}), libfmt-dev, libspdlog-dev, zlib1g-dev, \
libjpeg62-turbo-dev, libpng-dev, libwebp-dev, libzstd-dev, libssl-dev")
if(TUTTI_WITH_MPI)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libopenmpi-dev")
endif()
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++, cmake, ninja-build, pkg-config")
include(CPack)
