# LibTorch's CUDA build and NVIDIA's libraries without a CUDA toolkit: tutti compiles no CUDA. Read by the
# build and, installed, by find_package(tutti); docs/design/build.md says more.

# tutti_find_torch(OPTION...): find_package(Torch OPTION...), which without this asks a CUDA build for nvcc.
# A macro, since what it sets is for the caller.
macro(tutti_find_torch)
  # Where this target exists, LibTorch's files leave CUDA's compiler alone. A project that compiles CUDA
  # has enabled the language, and gets from them what it always got.
  if(NOT CMAKE_CUDA_COMPILER AND NOT TARGET torch::cudart)
    add_library(torch::cudart INTERFACE IMPORTED)
  endif()
  # The wheels' files warn that they lack kineto, a profiler that their libraries contain.
  set(tutti_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  find_package(Torch ${ARGN})
  set(CMAKE_MESSAGE_LOG_LEVEL "${tutti_log_level}")
  if(TARGET torch_cuda)
    # What NVIDIA's libraries define is looked for when a program starts, so that one may be linked
    # where they are not.
    target_link_options(torch INTERFACE -Wl,--allow-shlib-undefined)
  endif()
endmacro()

# tutti_find_nccl(FOLDER...): targets tutti::nccl and tutti::cudart where both are found: NCCL in NCCL_ROOT
# (include/nccl.h, lib/libnccl.so), beside LibTorch, in a FOLDER or the system; CUDA's runtime beside
# LibTorch, since a process has one alone, else in a toolkit. Beside LibTorch: in folders of pip's wheels.
function(tutti_find_nccl)
  cmake_path(SET wheels NORMALIZE "${TORCH_INSTALL_PREFIX}/../nvidia")
  find_path(TUTTI_NCCL_INCLUDE nccl.h HINTS ENV NCCL_ROOT "${wheels}/nccl" PATH_SUFFIXES include)
  find_library(TUTTI_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ENV NCCL_ROOT "${wheels}/nccl" ${ARGN}
    PATH_SUFFIXES lib)
  mark_as_advanced(TUTTI_NCCL_INCLUDE TUTTI_NCCL_LIBRARY)
  if(NOT TUTTI_NCCL_LIBRARY OR TARGET tutti::nccl)
    return()
  endif()

  # CUDA 13's wheels share a folder, cu13; those before have one each.
  file(GLOB cudart "${wheels}/cu[0-9]*/lib/libcudart.so.*" "${wheels}/cuda_runtime/lib/libcudart.so.*")
  file(GLOB headers "${wheels}/cu[0-9]*/include" "${wheels}/cuda_runtime/include"
    "${wheels}/cuda_nvcc/include" "${wheels}/cuda_cccl/include")
  if(NOT cudart)
    find_package(CUDAToolkit QUIET)
    set(cudart "${CUDA_cudart_LIBRARY}")
    set(headers "${CUDAToolkit_INCLUDE_DIRS}")
  endif()
  if(NOT cudart)
    return()
  endif()
  add_library(tutti::cudart SHARED IMPORTED)
  set_target_properties(tutti::cudart PROPERTIES IMPORTED_LOCATION "${cudart}"
    INTERFACE_INCLUDE_DIRECTORIES "${headers}")
  add_library(tutti::nccl SHARED IMPORTED)
  set_target_properties(tutti::nccl PROPERTIES IMPORTED_LOCATION "${TUTTI_NCCL_LIBRARY}"
    INTERFACE_LINK_LIBRARIES tutti::cudart)
  if(TUTTI_NCCL_INCLUDE)  # programs need none
    target_include_directories(tutti::nccl INTERFACE "${TUTTI_NCCL_INCLUDE}")
  endif()
endfunction()
