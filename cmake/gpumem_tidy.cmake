# `cmake --build --preset release --target tidy`: clang-tidy, with the checks of .clang-tidy, over what we compile.

find_program(GPUMEM_RUN_CLANG_TIDY NAMES run-clang-tidy run-clang-tidy-18 run-clang-tidy-14)
mark_as_advanced(GPUMEM_RUN_CLANG_TIDY)
if(GPUMEM_RUN_CLANG_TIDY)
  add_custom_target(tidy
    COMMAND ${GPUMEM_RUN_CLANG_TIDY} -quiet -p ${PROJECT_BINARY_DIR}
            "^${PROJECT_SOURCE_DIR}/(src|policies|replay|bench|tools|examples)/"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} USES_TERMINAL VERBATIM)
else()
  add_custom_target(tidy
    COMMAND ${CMAKE_COMMAND} -E echo "tidy: run-clang-tidy is not installed (scripts/deps test installs it)"
    COMMAND ${CMAKE_COMMAND} -E false)
endif()
