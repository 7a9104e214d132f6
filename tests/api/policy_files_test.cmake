# Adding a policy, done: to a copy of policies/ come its source, its test, and its row in policies.def. Nothing else
# changes, and the policy is made by its name, checks its parameters and stands in the documents' tables.

foreach(variable POLICIES TOOLS INCLUDE BASE WORK COMPILER OBJECTS LIBRARIES)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "policy_files_test: -D ${variable}=... is missing")
  endif()
endforeach()

file(REMOVE_RECURSE ${WORK})
file(COPY ${POLICIES}/ DESTINATION ${WORK}/policies)
file(WRITE ${WORK}/policies/exact.cpp [[
/// exact: what is needed, in whole steps.
#include "built_in.hpp"
#include "segment_sizes.hpp"

namespace gpumem {
namespace {

class exact final : public policy {
 public:
  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    return request_within_limit(view, need_bytes, need_bytes);
  }
};

}  // namespace

built_in_policy exact_policy() {
  return {{.name = "exact",
           .summary = "what is needed",
           .parameters = {{.name = "step", .values = "bytes", .default_text = "none", .help = "whole steps"}},
           .takes = "what is needed",
           .gives_back = "idle segments, on `trim`",
           .choose_when = "every byte counts"},
          [](const policy_setup&) { return std::make_unique<exact>(); }};
}

}  // namespace gpumem
]])
file(WRITE ${WORK}/exact_test.cpp [[
#include <cstdio>

#include "document_tables.hpp"
#include "gpumem/policy.hpp"

#define EXPECT(condition) \
  if (!(condition)) return std::fprintf(stderr, "not so: %s\n", #condition), 1

int main() {
  const auto made = gpumem::make_policy("exact:step=2MiB", {});
  EXPECT(made.ok());
  EXPECT((*made)->grow({.limit_bytes = 1000, .granularity_bytes = 8}, 3).bytes == 8);
  EXPECT(!gpumem::find_policy("exact:stop=2MiB").ok());
  EXPECT(gpumem::known_policies().back().name == "exact");
  EXPECT(gpumem::tools::policy_table().find("| `exact` | what is needed |") != std::string::npos);
  EXPECT(gpumem::tools::policy_parameter_table().find("| `exact:step` | bytes |") != std::string::npos);
}
]])
file(APPEND ${WORK}/policies/policies.def "POLICY(exact_policy)\n")

# Only registry.cpp reads the table of policies; the other files are linked as they were built.
set(unchanged ${OBJECTS})
list(FILTER unchanged EXCLUDE REGEX "/registry\\.cpp\\.o$")
execute_process(
  COMMAND ${COMPILER} -std=c++20 -O0 -I ${WORK}/policies -I ${TOOLS} -I ${INCLUDE} -I ${BASE} ${WORK}/exact_test.cpp
          ${WORK}/policies/exact.cpp ${WORK}/policies/registry.cpp ${TOOLS}/document_tables.cpp ${unchanged}
          ${LIBRARIES} -o ${WORK}/exact_test
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/exact_test COMMAND_ERROR_IS_FATAL ANY)
