# Each function that the REAL runtime exports is in OURS, under the same version.
foreach(library REAL OURS)
  execute_process(COMMAND ${NM} -D --defined-only --with-symbol-versions ${${library}} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL " T [^\n]+" ${library}_names "${symbols}")
endforeach()
list(LENGTH REAL_names count)
if(count LESS 100)
  message(FATAL_ERROR "${REAL} exports ${count} functions; expected some hundreds")
endif()
list(REMOVE_ITEM REAL_names ${OURS_names})
if(REAL_names)
  message(FATAL_ERROR "the double of the CUDA runtime lacks: ${REAL_names}")
endif()
