# Installs what programs need of the LibTorch in tutti_from, without Python's part: as hard links where
# both lie in one file system, which cost no space, else as copies.
file(GLOB_RECURSE tutti_files RELATIVE "${tutti_from}" "${tutti_from}/lib/*" "${tutti_from}/include/*"
  "${tutti_from}/share/cmake/*")
list(FILTER tutti_files EXCLUDE REGEX "^lib/lib(torch_python|torchbind_test|jitbackend_test|\
backend_with_compiler|aoti_custom_ops)\\.so|^lib/libshm_windows/")
message(STATUS "Installing: ${tutti_to} (LibTorch)")
foreach(file IN LISTS tutti_files)
  cmake_path(GET file PARENT_PATH folder)
  file(MAKE_DIRECTORY "${tutti_to}/${folder}")
  file(CREATE_LINK "${tutti_from}/${file}" "${tutti_to}/${file}" COPY_ON_ERROR)
endforeach()
