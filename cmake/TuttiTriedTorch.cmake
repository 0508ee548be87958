# The versions of LibTorch with which the program was built and has trained; CI tests one of them whole.
# The README names them; CMake and `tutti doctor` warn of others, some of which do not build.
set(TUTTI_TRIED_LIBTORCH 2.6 2.11 2.13)

# tutti_untried_torch(VERSION RESULT): a warning, or "" when VERSION ("2.13.0+cpu") was tried.
function(tutti_untried_torch version result)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${version}")
  set(${result} "" PARENT_SCOPE)
  if(NOT minor IN_LIST TUTTI_TRIED_LIBTORCH)
    list(JOIN TUTTI_TRIED_LIBTORCH ", " tried)
    set(${result} "LibTorch ${version} is none of the versions that tutti was tried with (${tried}): \
it may not build. tools/setup installs one that was." PARENT_SCOPE)
  endif()
endfunction()
