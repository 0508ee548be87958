# Installs what programs need of the LibTorch in tutti_from, without Python's part, and of NVIDIA's wheels
# beside a CUDA build: as hard links where both lie in one file system, which cost no space, else as copies.
function(tutti_install_files from to)
  file(GLOB_RECURSE files RELATIVE "${from}" ${ARGN})
  list(FILTER files EXCLUDE REGEX "^lib/lib(torch_python|torchbind_test|jitbackend_test|\
backend_with_compiler|aoti_custom_ops)\\.so|^lib/libshm_windows/")
  message(STATUS "Installing: ${to}")
  foreach(file IN LISTS files)
    cmake_path(GET file PARENT_PATH folder)
    file(MAKE_DIRECTORY "${to}/${folder}")
    file(CREATE_LINK "${from}/${file}" "${to}/${file}" COPY_ON_ERROR)
  endforeach()
endfunction()

tutti_install_files("${tutti_from}" "${tutti_to}" "${tutti_from}/lib/*" "${tutti_from}/include/*"
  "${tutti_from}/share/cmake/*")
# LibTorch looks for them in ../../nvidia, seen from its libraries.
if(EXISTS "${tutti_from}/lib/libtorch_cuda.so")
  tutti_install_files("${tutti_from}/../nvidia" "${tutti_to}/../nvidia" "${tutti_from}/../nvidia/*/lib/*.so*")
endif()
