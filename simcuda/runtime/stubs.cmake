# Writes OUTPUT: a function that returns cudaErrorNotSupported for each export of the REAL runtime that OBJECTS do not
# define. Without REAL it writes none.

set(names "")
if(REAL)
  execute_process(COMMAND ${NM} -D --defined-only ${REAL} OUTPUT_VARIABLE real COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${NM} --defined-only ${OBJECTS} OUTPUT_VARIABLE ours COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL " T [A-Za-z0-9_]+" names "${real}")
  string(REGEX MATCHALL " T [A-Za-z0-9_]+" have "${ours}")
  list(REMOVE_ITEM names ${have})
  list(SORT names)
endif()

# Functions that allocate or map memory, or make a pool for it.
set(memory "^cudaMalloc|MemAllocNode$|MemPoolCreate$|MemPoolImport|ImportExternalMemory$|GetMapped")

set(text "// Generated: what the double of the CUDA runtime lacks.\nextern \"C\" {\nint simcudart_not_supported();\nint simcudart_memory_not_supported(const char*);\n")
foreach(name IN LISTS names)
  string(SUBSTRING ${name} 3 -1 name)
  if(name MATCHES "${memory}")
    string(APPEND text "int ${name}() { return simcudart_memory_not_supported(\"${name}\"); }\n")
  else()
    string(APPEND text "int ${name}() { return simcudart_not_supported(); }\n")
  endif()
endforeach()
file(WRITE ${OUTPUT} "${text}}\n")
