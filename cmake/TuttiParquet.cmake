# tutti_find_parquet([FOLDER]): target tutti::parquet, Arrow's C++ library with Parquet: installed, else
# in FOLDER, that of pip's package pyarrow, or in the pyarrow of TUTTI_PYARROW_PYTHON or .venv. Sets
# TUTTI_PYARROW_FOLDER where it is pip's.
function(tutti_find_parquet)
  find_package(Parquet QUIET)
  if(TARGET Parquet::parquet_shared)
    add_library(tutti::parquet INTERFACE IMPORTED GLOBAL)
    target_link_libraries(tutti::parquet INTERFACE Parquet::parquet_shared Arrow::arrow_shared)
    return()
  endif()
  set(folder "${ARGV0}")
  if(NOT folder)
    set(python "${TUTTI_PYARROW_PYTHON}")
    if(NOT python)
      set(python "${PROJECT_SOURCE_DIR}/.venv/bin/python")
    endif()
    execute_process(COMMAND "${python}" -c "import os, pyarrow; print(os.path.dirname(pyarrow.__file__))"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  file(GLOB parquet "${folder}/libparquet.so*")
  file(GLOB arrow "${folder}/libarrow.so*")
  if(NOT parquet OR NOT arrow OR NOT EXISTS "${folder}/include/parquet/arrow/reader.h")
    message(FATAL_ERROR "TUTTI_WITH_PARQUET: Arrow's C++ library is not here: neither find_package(Parquet) nor \
a pyarrow; -DTUTTI_PYARROW_PYTHON=... names a Python that has it (pip install pyarrow)")
  endif()
  list(GET parquet 0 parquet)
  list(GET arrow 0 arrow)
  # It is linked by name and found again by its folder.
  add_library(tutti::parquet SHARED IMPORTED GLOBAL)
  set_target_properties(tutti::parquet PROPERTIES IMPORTED_LOCATION "${parquet}"
    INTERFACE_INCLUDE_DIRECTORIES "${folder}/include" INTERFACE_LINK_LIBRARIES "${arrow}")
  set(TUTTI_PYARROW_FOLDER "${folder}" PARENT_SCOPE)
endfunction()
