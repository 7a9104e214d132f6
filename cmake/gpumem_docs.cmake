# `cmake --build --preset release --target docs`: the reference of the public headers, by Doxygen, in docs/reference of the
# build folder. A warning is an error.

find_program(GPUMEM_DOXYGEN doxygen)
mark_as_advanced(GPUMEM_DOXYGEN)
if(GPUMEM_DOXYGEN)
  set(docs_folder ${PROJECT_BINARY_DIR}/docs)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/Doxyfile.in ${docs_folder}/Doxyfile @ONLY)
  add_custom_target(docs COMMAND ${GPUMEM_DOXYGEN} ${docs_folder}/Doxyfile WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                         COMMENT "The reference: ${docs_folder}/reference/index.html" VERBATIM)
else()
  add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -E echo "docs: doxygen is not installed (scripts/deps test installs it)"
    COMMAND ${CMAKE_COMMAND} -E false)
endif()
