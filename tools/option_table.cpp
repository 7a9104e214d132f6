/// Prints docs/settings.md's table of variables from options.def.
#include <cstdio>

#include "gpumem/settings.hpp"

int main() {
  const std::string table = gpumem::option_table_markdown();
  const bool written = std::fwrite(table.data(), 1, table.size(), stdout) == table.size() && std::fflush(stdout) == 0;
  return written ? 0 : 1;
}
