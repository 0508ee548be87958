# Finds LibTorch: Torch_DIR (variable or environment), else the wheel in .venv, else the system's.
if(NOT Torch_DIR AND NOT DEFINED ENV{Torch_DIR})
  file(GLOB tutti_venv_torch
    "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake/Torch")
  if(tutti_venv_torch)
    list(GET tutti_venv_torch 0 tutti_venv_torch)
    set(Torch_DIR "${tutti_venv_torch}" CACHE PATH "LibTorch's CMake files" FORCE)
  endif()
endif()
include(TuttiCuda)
tutti_find_torch(REQUIRED)
if(TARGET torch_cuda)
  # Whoever asks for a device loads CUDA then. libtorch.so is nothing but a link to both parts, and a program
  # that holds it does not start where NVIDIA's libraries are not.
  get_target_property(tutti_torch_cpu torch_cpu LOCATION)
  set_target_properties(torch PROPERTIES IMPORTED_LOCATION_RELEASE "${tutti_torch_cpu}"
    INTERFACE_LINK_LIBRARIES torch_cpu_library)
endif()
if(Torch_VERSION VERSION_LESS 2.6)
  message(FATAL_ERROR "LibTorch ${Torch_VERSION} is too old: tutti needs 2.6 or newer (run tools/setup).")
endif()
include(TuttiTriedTorch)
tutti_untried_torch("${Torch_VERSION}" tutti_untried)
if(tutti_untried)
  message(WARNING "${tutti_untried}")
endif()
if(TORCH_CXX_FLAGS MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  message(FATAL_ERROR "This LibTorch (${Torch_VERSION}) has the old C++ ABI. Use 2.7 or newer from pip "
    "(torch==2.13.0+cpu, as tools/setup installs it) or Debian's libtorch-dev.")
endif()

# Wheels of LibTorch bring headers of another fmt, without its library. A folder that holds only the
# system's fmt goes before them, so that every floor is compiled with the fmt it is linked with.
find_package(fmt REQUIRED)
get_target_property(TUTTI_FMT_INCLUDE fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
set(tutti_fmt_first "${PROJECT_BINARY_DIR}/fmt_first")
file(MAKE_DIRECTORY "${tutti_fmt_first}")
file(CREATE_LINK "${TUTTI_FMT_INCLUDE}/fmt" "${tutti_fmt_first}/fmt" SYMBOLIC)

# Precompiled headers of what uses torch. A compiler instantiates what is in one in every source that
# sees it, so the library's has no more than its sources need; programs and tests include all of torch.
# Three, for a compiler takes none that was made with another level of optimization.
function(tutti_torch_headers target)
  file(WRITE "${PROJECT_BINARY_DIR}/${target}.cpp.in" "// holds precompiled torch headers\n")
  configure_file("${PROJECT_BINARY_DIR}/${target}.cpp.in" "${PROJECT_BINARY_DIR}/${target}.cpp" COPYONLY)
  add_library(${target} OBJECT "${PROJECT_BINARY_DIR}/${target}.cpp")
  target_link_libraries(${target} PUBLIC torch)
  target_include_directories(${target} SYSTEM BEFORE PRIVATE "${tutti_fmt_first}")
  target_precompile_headers(${target} PUBLIC ${ARGN})
  set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE tutti_torch EXCLUDE_FROM_ALL ON)
endfunction()
tutti_torch_headers(tutti_torch_pch <torch/types.h> <torch/nn/module.h>)
tutti_torch_headers(tutti_torch_whole_pch <torch/torch.h>)
target_compile_options(tutti_torch_whole_pch PRIVATE $<$<CONFIG:Release>:-O1>)
tutti_torch_headers(tutti_torch_tests_pch <torch/torch.h>)
target_compile_options(tutti_torch_tests_pch PRIVATE $<$<CONFIG:Release>:-O0>)

# A compiler that reads torch headers takes up to 2 GiB: no more of them at once than memory holds.
cmake_host_system_information(RESULT tutti_memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR tutti_torch_jobs "${tutti_memory_mib} / 2048 + 1")
set_property(GLOBAL APPEND PROPERTY JOB_POOLS tutti_torch=${tutti_torch_jobs})

# tutti_sees_torch(SOURCE RESULT): whether it includes a torch header, by whatever header of ours.
function(tutti_sees_torch source result)
  get_property(sees GLOBAL PROPERTY "tutti_sees_torch ${source}")
  if("${sees}" STREQUAL "")
    set(sees OFF)
    file(STRINGS "${source}" includes REGEX "^#include [<\"](torch|ATen|c10|tutti|tests|bench)/")
    foreach(line IN LISTS includes)
      string(REGEX REPLACE "^#include [<\"]([^>\"]*).*" "\\1" header "${line}")
      if(header MATCHES "^(torch|ATen|c10)/")
        set(sees ON)
      elseif(EXISTS "${PROJECT_SOURCE_DIR}/${header}")
        tutti_sees_torch("${PROJECT_SOURCE_DIR}/${header}" sees)
      endif()
      if(sees)
        break()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY "tutti_sees_torch ${source}" ${sees})
  endif()
  set(${result} ${sees} PARENT_SCOPE)
endfunction()

# Sources that see no torch header compile faster without the precompiled one.
function(tutti_skip_precompiled_torch target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  foreach(source IN LISTS sources)
    get_filename_component(path "${source}" ABSOLUTE BASE_DIR "${folder}")
    if(NOT EXISTS "${path}")  # it is made by the build
      continue()
    endif()
    tutti_sees_torch("${path}" sees)
    if(NOT sees)
      set_source_files_properties("${path}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

# tutti_use_torch(TARGET [WHOLE | TESTS]): where sources include <torch/torch.h>, WHOLE for programs that
# spend their time in libraries, with -O1, or TESTS, with -O0.
function(tutti_use_torch target)
  cmake_parse_arguments(arg "WHOLE;TESTS" "" "" ${ARGN})
  set(headers tutti_torch_pch)
  if(arg_WHOLE)
    set(headers tutti_torch_whole_pch)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  elseif(arg_TESTS)
    set(headers tutti_torch_tests_pch)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O0>)
  endif()
  target_link_libraries(${target} PUBLIC torch)
  target_include_directories(${target} SYSTEM BEFORE PRIVATE "${tutti_fmt_first}")
  target_compile_definitions(${target} INTERFACE $<INSTALL_INTERFACE:FMT_HEADER_ONLY>)
  target_precompile_headers(${target} REUSE_FROM ${headers})
  tutti_skip_precompiled_torch(${target})
  set_property(TARGET ${target} PROPERTY JOB_POOL_COMPILE tutti_torch)
endfunction()
