/// Prints one table of the documents, for scripts/update_option_table and scripts/update_policy_table.
#include <cstdio>
#include <string_view>

#include "document_tables.hpp"

int main(int count, char** words) {
  const std::string_view name = count == 2 ? words[1] : "";
  std::string table;
  if (name == "options") table = gpumem::tools::option_table();
  if (name == "policies") table = gpumem::tools::policy_table();
  if (name == "parameters") table = gpumem::tools::policy_parameter_table();
  if (table.empty()) {
    std::fputs("usage: gpumem_print_table options|policies|parameters\n", stderr);
    return 2;
  }
  const bool written = std::fwrite(table.data(), 1, table.size(), stdout) == table.size() && std::fflush(stdout) == 0;
  return written ? 0 : 1;
}
