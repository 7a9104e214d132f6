# The command `gpumem plan` as a program of its own.
find_package(CLI11 REQUIRED GLOBAL)
find_package(nlohmann_json REQUIRED GLOBAL)
add_executable(gpumem_plan_program
  ${CMAKE_CURRENT_LIST_DIR}/plan_main.cpp ${CMAKE_CURRENT_LIST_DIR}/plan.cpp
  ${PROJECT_SOURCE_DIR}/bench/byte_source.cpp ${PROJECT_SOURCE_DIR}/bench/trace.cpp)
gpumem_use_layers(gpumem_plan_program plan base)
target_include_directories(gpumem_plan_program PRIVATE ${CMAKE_CURRENT_LIST_DIR} ${PROJECT_SOURCE_DIR}/bench)
target_link_libraries(gpumem_plan_program PRIVATE CLI11::CLI11 nlohmann_json::nlohmann_json)
set_target_properties(gpumem_plan_program PROPERTIES OUTPUT_NAME gpumem_plan)
