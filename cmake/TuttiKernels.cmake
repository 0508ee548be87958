# tutti_kernel_variants(MODULE SOURCE...): compiles kernel sources once per instruction set into
# tutti_MODULE. A SOURCE is relative to the module's folder and stands where its glob does not look
# (tutti/optim/kernels/update.cpp). Each copy sees TUTTI_KERNEL_VARIANT, the namespace it defines its
# table in: baseline, avx2, avx512 (x86-64) or baseline alone (elsewhere); see base/cpu_variant.h.
#
# A kernel source must not emit an inline function or template of a shared header: the linker keeps
# one copy of those, maybe the AVX-512 one, and baseline code would call it. It includes <cstdint> and
# plain structs, puts its own functions in an anonymous namespace, and the tests tutti_MODULE_kernels_*.symbols
# check that no weak symbol is defined.
function(tutti_kernel_variants module)
  list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/${module}/" OUTPUT_VARIABLE sources)
  set(variants baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(APPEND variants avx2 avx512)
  endif()
  # F16C and FMA stand with AVX2 on every CPU that has it; cpu_variant.cpp asks for all. Without
  # contraction (below) FMA changes nothing.
  set(flags_avx2 -mavx2 -mf16c -mfma)
  set(flags_avx512 ${flags_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl
      -mprefer-vector-width=512)
  foreach(variant IN LISTS variants)
    set(target tutti_${module}_kernels_${variant})
    add_library(${target} OBJECT ${sources})
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
    target_compile_definitions(${target} PRIVATE TUTTI_KERNEL_VARIANT=${variant})
    # -O3 in debug builds too, so that what the tests compare is what users run. Square roots and
    # divisions stay true; -fno-trapping-math only lets comparisons become vector selects.
    target_compile_options(${target} PRIVATE -O3 -ffp-contract=off -fno-math-errno
      -fno-trapping-math -fno-exceptions ${flags_${variant}})
    target_sources(tutti_${module} PRIVATE $<TARGET_OBJECTS:${target}>)
    set_property(GLOBAL APPEND PROPERTY TUTTI_KERNEL_TARGETS ${target})
  endforeach()
endfunction()

# One ctest per kernel object: it must not define a weak symbol (sanitizers add some of their own).
function(tutti_kernel_symbol_tests)
  get_property(targets GLOBAL PROPERTY TUTTI_KERNEL_TARGETS)
  if(TUTTI_SANITIZE OR NOT CMAKE_NM)
    return()
  endif()
  foreach(target IN LISTS targets)
    add_test(NAME ${target}.symbols COMMAND ${CMAKE_COMMAND} "-DNM=${CMAKE_NM}"
      "-DOBJECTS=$<TARGET_OBJECTS:${target}>" -P "${PROJECT_SOURCE_DIR}/cmake/CheckKernelSymbols.cmake")
  endforeach()
endfunction()
