/// Prints the documents' table of policies, or with `parameters` that of their parameters, from the registry.
#include <cstdio>
#include <string_view>

#include "gpumem/policy.hpp"

int main(int count, char** words) {
  const bool parameters = count == 2 && std::string_view{words[1]} == "parameters";
  if (count != 1 && !parameters) {
    std::fputs("usage: gpumem_policy_table [parameters]\n", stderr);
    return 2;
  }
  const std::string table = parameters ? gpumem::policy_parameter_table_markdown() : gpumem::policy_table_markdown();
  const bool written = std::fwrite(table.data(), 1, table.size(), stdout) == table.size() && std::fflush(stdout) == 0;
  return written ? 0 : 1;
}
