# Engines that need a library of somebody else's: found or not, never required. The folder of one
# that is absent gives its stand-in alone, NAME_absent.cpp.
set(MPI_CXX_SKIP_MPICXX ON)  # the C API alone
find_package(MPI QUIET COMPONENTS CXX)
set(TUTTI_WITH_MPI "${MPI_CXX_FOUND}")

tutti_find_nccl()
set(TUTTI_WITH_NCCL OFF)
if(TARGET tutti::nccl AND TUTTI_NCCL_INCLUDE)
  set(TUTTI_WITH_NCCL ON)
endif()

# Step graphs: the headers of LibTorch's CUDA and of CUDA's run-time library, which comes with NCCL.
set(TUTTI_WITH_STEP_GRAPH OFF)
if(TUTTI_WITH_NCCL AND TARGET torch_cuda)
  set(TUTTI_WITH_STEP_GRAPH ON)
endif()

# PJRT: the header of its interface, which comes with the plugin for CPUs (tools/setup --pjrt). Plugins
# themselves are loaded by name when a program asks for one.
file(GLOB tutti_pjrt_places
  "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/xla_plugins/xla_cpu_pjrt/include")
find_path(TUTTI_PJRT_INCLUDE pjrt_c_api.h HINTS ${tutti_pjrt_places})
set(TUTTI_WITH_PJRT OFF)
if(TUTTI_PJRT_INCLUDE)
  set(TUTTI_WITH_PJRT ON)
  add_library(tutti_pjrt_header INTERFACE)
  target_include_directories(tutti_pjrt_header SYSTEM INTERFACE "${TUTTI_PJRT_INCLUDE}")
  # Members of its table have the names of their types: with -Wpedantic an error to GCC.
  target_compile_options(tutti_pjrt_header INTERFACE -Wno-pedantic)
endif()

# Parquet files: Arrow's C++ library, installed or in pip's pyarrow. Asked for, for it is larger than tutti.
option(TUTTI_WITH_PARQUET "Read Parquet files by Arrow's C++ library" OFF)
set(TUTTI_PYARROW_PYTHON "" CACHE FILEPATH "A Python with pyarrow, whose libraries TUTTI_WITH_PARQUET takes")
if(TUTTI_WITH_PARQUET)
  include(TuttiParquet)
  tutti_find_parquet()
endif()

# What the core does without (docs/design/floors.md).
option(TUTTI_WITH_EXTRAS "Build tutti/extras" ON)
if(TUTTI_BUILD_TESTS AND NOT TUTTI_WITH_EXTRAS)
  message(FATAL_ERROR "The tests are of the extras too: TUTTI_WITH_EXTRAS=OFF goes with TUTTI_BUILD_TESTS=OFF.")
endif()

# tutti_extra(MODULE NAME [INSTEAD] [NEEDS FOUND]): adds tutti/extras/NAME to a module; where it is left
# out, or what it needs is not here, the stand-in INSTEAD, a file of the module.
function(tutti_extra module name)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "NEEDS" "")
  if(NOT DEFINED arg_NEEDS)
    set(arg_NEEDS ON)
  endif()
  if(TUTTI_WITH_EXTRAS AND arg_NEEDS)
    file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/extras/${name}/*.cpp")
  else()
    set(sources ${arg_UNPARSED_ARGUMENTS})
    list(TRANSFORM sources PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/${module}/")
  endif()
  target_sources(tutti_${module} PRIVATE ${sources})
endfunction()

# tutti_engine(MODULE NAME FOUND LIBRARIES...): adds the folder MODULE/NAME to a module; NAME may be
# ROOM/NAME.
function(tutti_engine module place found)
  set(folder "${CMAKE_CURRENT_SOURCE_DIR}/${module}/${place}")
  cmake_path(GET place FILENAME name)
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  set(absent "${folder}/${name}_absent.cpp")
  if(found)
    list(REMOVE_ITEM sources "${absent}")
    target_link_libraries(tutti_${module} PRIVATE ${ARGN})
    message(STATUS "tutti: engine ${name}: yes")
  else()
    set(sources "${absent}")
    message(STATUS "tutti: engine ${name}: no, its library is not here")
  endif()
  target_sources(tutti_${module} PRIVATE ${sources})
endfunction()
