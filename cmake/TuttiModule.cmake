# Sources without LibTorch are compiled so many at once (docs/design/build.md).
set(TUTTI_FILES_AT_ONCE 8)
# What most of them include; compiled once.
set(TUTTI_STD_HEADERS <fmt/format.h> <fmt/ranges.h> <algorithm> <chrono> <condition_variable>
  <filesystem> <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <thread> <vector>)

# tutti_module(NAME [TORCH [WHOLE]] [DEPENDS ...]): one static library per module, from all .cpp files
# of its folder (deeper folders are listed by SUBFOLDERS). A module links only modules that stand below
# it. WHOLE: compiled as one source, in half of the time (docs/design/build.md).
function(tutti_module name)
  cmake_parse_arguments(arg "TORCH;WHOLE" "" "DEPENDS;SUBFOLDERS;EXCLUDE" ${ARGN})
  set(folder "${CMAKE_CURRENT_SOURCE_DIR}/${name}")
  set(patterns "${folder}/*.cpp")
  foreach(sub IN LISTS arg_SUBFOLDERS)
    list(APPEND patterns "${folder}/${sub}/*.cpp")
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  foreach(excluded IN LISTS arg_EXCLUDE)
    list(REMOVE_ITEM sources "${folder}/${excluded}")
  endforeach()
  if(NOT sources)  # a floor that is still to be built
    set(sources "${PROJECT_BINARY_DIR}/empty_module.cpp")
    file(CONFIGURE OUTPUT "${sources}" CONTENT "// a module without sources\n")
  endif()
  add_library(tutti_${name} STATIC ${sources})
  add_library(tutti::${name} ALIAS tutti_${name})
  target_include_directories(tutti_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_compile_features(tutti_${name} PUBLIC cxx_std_20)
  set_property(TARGET tutti_${name} PROPERTY EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY TUTTI_MODULES tutti_${name})
  foreach(dep IN LISTS arg_DEPENDS)
    target_link_libraries(tutti_${name} PUBLIC tutti_${dep})
  endforeach()
  if(arg_TORCH)
    tutti_use_torch(tutti_${name})
    # Whoever sees a torch header through ours must see it as we did; see TuttiFlags.cmake.
    target_compile_definitions(tutti_${name} INTERFACE $<INSTALL_INTERFACE:NDEBUG>)
    if(arg_WHOLE)
      set_target_properties(tutti_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    endif()
  else()
    tutti_without_torch(tutti_${name} tutti_base)
  endif()
endfunction()

# tutti_without_torch(TARGET HOLDER): compiled a few files at once, with HOLDER's precompiled headers.
function(tutti_without_torch target holder)
  if(target STREQUAL holder)
    target_precompile_headers(${target} PRIVATE ${TUTTI_STD_HEADERS})
  else()
    target_precompile_headers(${target} REUSE_FROM ${holder})
  endif()
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TUTTI_FILES_AT_ONCE})
endfunction()

# tutti_split_torch(TARGET PLAIN): what of TARGET's sources sees no torch header becomes PLAIN, object
# files that TARGET holds, with precompiled headers, and so compiler options, of its own.
function(tutti_split_torch target plain)
  get_target_property(sources ${target} SOURCES)
  set(with_torch "")
  set(without "")
  foreach(source IN LISTS sources)
    tutti_sees_torch("${source}" sees)
    if(sees)
      list(APPEND with_torch "${source}")
    else()
      list(APPEND without "${source}")
    endif()
  endforeach()
  add_library(${plain} OBJECT ${without})
  tutti_without_torch(${plain} ${plain})
  # tutti_use_torch has told them to skip the precompiled header of torch.
  set_source_files_properties(${without} PROPERTIES SKIP_PRECOMPILE_HEADERS OFF)
  set_target_properties(${target} PROPERTIES SOURCES "${with_torch}")
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${plain}>)
endfunction()
