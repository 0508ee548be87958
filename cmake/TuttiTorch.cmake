# Finds LibTorch: Torch_DIR (variable or environment), else the wheel in .venv, else the system's.
if(NOT Torch_DIR AND NOT DEFINED ENV{Torch_DIR})
  file(GLOB tutti_venv_torch
    "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake/Torch")
  if(tutti_venv_torch)
    list(GET tutti_venv_torch 0 tutti_venv_torch)
    set(Torch_DIR "${tutti_venv_torch}" CACHE PATH "LibTorch's CMake files" FORCE)
  endif()
endif()
# The CPU wheel's own files warn that they lack kineto, a profiler that its libraries contain.
set(tutti_log_level "${CMAKE_MESSAGE_LOG_LEVEL}")
set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
find_package(Torch REQUIRED)
set(CMAKE_MESSAGE_LOG_LEVEL "${tutti_log_level}")
if(Torch_VERSION VERSION_LESS 2.6)
  message(FATAL_ERROR "LibTorch ${Torch_VERSION} is too old: tutti needs 2.6 or newer (run tools/setup).")
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

# The one precompiled header of the torch floors; every target that uses torch shares it.
file(WRITE "${PROJECT_BINARY_DIR}/torch_pch.cpp.in" "// holds the precompiled torch header\n")
configure_file("${PROJECT_BINARY_DIR}/torch_pch.cpp.in" "${PROJECT_BINARY_DIR}/torch_pch.cpp" COPYONLY)
add_library(tutti_torch_pch OBJECT "${PROJECT_BINARY_DIR}/torch_pch.cpp")
target_link_libraries(tutti_torch_pch PUBLIC torch)
target_include_directories(tutti_torch_pch BEFORE PRIVATE "${tutti_fmt_first}")
target_precompile_headers(tutti_torch_pch PUBLIC <torch/torch.h>)

# A compiler that reads torch headers takes up to 2 GiB: no more of them at once than memory holds.
cmake_host_system_information(RESULT tutti_memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR tutti_torch_jobs "${tutti_memory_mib} / 2048 + 1")
set_property(GLOBAL APPEND PROPERTY JOB_POOLS tutti_torch=${tutti_torch_jobs})
set_property(TARGET tutti_torch_pch PROPERTY JOB_POOL_COMPILE tutti_torch)

# Sources that see no torch header compile twice as fast without the precompiled one.
function(tutti_skip_precompiled_torch target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  foreach(source IN LISTS sources)
    get_filename_component(path "${source}" ABSOLUTE BASE_DIR "${folder}")
    if(NOT EXISTS "${path}")  # it is made by the build
      continue()
    endif()
    file(STRINGS "${path}" seen REGEX "#include (<(torch|ATen|c10)/|[<\"]tutti/tutti\\.h)")
    if(NOT seen)
      set_source_files_properties("${path}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

function(tutti_use_torch target)
  target_link_libraries(${target} PUBLIC torch)
  target_include_directories(${target} BEFORE PRIVATE "${tutti_fmt_first}")
  target_compile_definitions(${target} INTERFACE $<INSTALL_INTERFACE:FMT_HEADER_ONLY>)
  target_precompile_headers(${target} REUSE_FROM tutti_torch_pch)
  tutti_skip_precompiled_torch(${target})
  set_property(TARGET ${target} PROPERTY JOB_POOL_COMPILE tutti_torch)
endfunction()
