# cmake -DSOURCE=checkout -P tried_torch.cmake: which versions of LibTorch are warned of, and that the
# README names those that are not.
cmake_minimum_required(VERSION 3.25)
include("${SOURCE}/cmake/TuttiTriedTorch.cmake")

foreach(version IN LISTS TUTTI_TRIED_LIBTORCH)
  foreach(of_it "${version}.0" "${version}.1+cpu" "${version}.0a0+git1a2b")
    tutti_untried_torch("${of_it}" warning)
    if(warning)
      message(SEND_ERROR "${of_it} was tried, got: ${warning}")
    endif()
  endforeach()
endforeach()

foreach(version 1.13.1 2.1.0 2.60.0 2.130.0 12.6.0 3.0.0+cpu unknown "")
  tutti_untried_torch("${version}" warning)
  string(FIND "${warning}" "LibTorch ${version} is none of" place)
  if(place EQUAL -1)
    message(SEND_ERROR "${version} was not tried, got: ${warning}")
  endif()
endforeach()

file(STRINGS "${SOURCE}/README.md" sentence REGEX "Tried with LibTorch")
string(REGEX MATCHALL "[0-9]+\\.[0-9]+" named "${sentence}")
if(NOT "${named}" STREQUAL "${TUTTI_TRIED_LIBTORCH}")
  message(SEND_ERROR "README.md says \"Tried with LibTorch\" ${named}; expected ${TUTTI_TRIED_LIBTORCH}")
endif()
