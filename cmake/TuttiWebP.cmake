# tutti_find_webp([REQUIRED]): target tutti::webp, libwebp's decoder. Debian 12's package has no CMake
# files of its own. Installed beside tuttiConfig.cmake, which needs it too.
function(tutti_find_webp)
  find_path(TUTTI_WEBP_INCLUDE webp/decode.h ${ARGN})
  find_library(TUTTI_WEBP_LIBRARY webp ${ARGN})
  mark_as_advanced(TUTTI_WEBP_INCLUDE TUTTI_WEBP_LIBRARY)
  if(TUTTI_WEBP_INCLUDE AND TUTTI_WEBP_LIBRARY AND NOT TARGET tutti::webp)
    add_library(tutti::webp UNKNOWN IMPORTED GLOBAL)
    set_target_properties(tutti::webp PROPERTIES IMPORTED_LOCATION "${TUTTI_WEBP_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${TUTTI_WEBP_INCLUDE}")
  endif()
endfunction()
