# cmake -DNM=nm -DOBJECTS=a.o;b.o -P CheckKernelSymbols.cmake: fails when an object defines a weak symbol
# (see TuttiKernels.cmake) or none at all.
execute_process(COMMAND ${NM} -C ${OBJECTS} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
if(NOT symbols MATCHES " [DR] ")
  message(FATAL_ERROR "no kernel table in ${OBJECTS}:\n${symbols}")
endif()
string(REGEX MATCHALL "[0-9a-f]+ [WVu] [^\n]*" weak "${symbols}")
if(weak)
  list(JOIN weak "\n  " weak)
  message(FATAL_ERROR "${OBJECTS} defines inline code that other files may be given:\n  ${weak}")
endif()
