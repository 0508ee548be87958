# Compiler settings for every target. They stand at directory level, so that all targets that share
# the precompiled torch header have identical flags.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Executables too: GCC ignores a precompiled header made with -fPIC where it compiles with -fPIE.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)
# Kernels ask for more where it pays; elsewhere -O3 costs compile time only.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wno-missing-field-initializers)
# Files that are compiled together (TuttiModule.cmake) look like headers to this one.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-subobject-linkage)
endif()
if(TUTTI_WERROR)
  add_compile_options(-Werror)
endif()

# One spelling of arithmetic everywhere: no contraction, so that sums and updates have the same bits
# in every build and on every instruction set.
add_compile_options(-ffp-contract=off)

# Nobody replaces our functions by others of the same name: calls within a file are inlined.
add_compile_options(-fno-semantic-interposition)

# Torch headers change the size of classes without NDEBUG; our own checks are TUTTI_CHECK.
add_compile_definitions(NDEBUG)

# GCC collects its garbage late: a tenth of the time for 80 MiB more.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-expand=200 --param=ggc-min-heapsize=1048576)
endif()

if(TUTTI_SANITIZE)
  list(JOIN TUTTI_SANITIZE "," tutti_sanitizers)
  add_compile_options(-fsanitize=${tutti_sanitizers} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${tutti_sanitizers})
  # GCC's own <regex> looks uninitialized to it through the sanitizers' code.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if("undefined" IN_LIST TUTTI_SANITIZE)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

find_program(TUTTI_CCACHE ccache)
if(TUTTI_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A precompiled header is part of what ccache must compare.
  set(tutti_ccache
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    CCACHE_DEPEND=1 CCACHE_INODECACHE=1)
  # In build/ paths count from the checkout, so that another clone finds what this one compiled
  # without a precompiled header (each clone makes its own); with debug symbols the folder stays part
  # of the key.
  cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${PROJECT_BINARY_DIR}" tutti_builds_inside)
  if(tutti_builds_inside AND CMAKE_BUILD_TYPE STREQUAL "Release")
    list(APPEND tutti_ccache CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1)
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env ${tutti_ccache} ${TUTTI_CCACHE})
  add_compile_options(-fpch-preprocess)
endif()
