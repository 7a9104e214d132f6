// `gpumem predict`: one run on a card with room for everything, then which cards and policies would have held it.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace gpumem::cli {

struct predict_options {
  std::vector<std::string> capacities;  ///< memory, or names of cards; empty: the card's own
  std::string card = "h100";            ///< what the program sees, but for the memory
  std::string context = "450MiB";
  bool json = false;
  std::vector<std::string> command;
};

CLI::App* add_predict_command(CLI::App& to, predict_options& into);

/// 0; 3 where nothing fits; the command's own status where that is not 0; 1 and 2 as everywhere.
int predict(const predict_options& with);

}  // namespace gpumem::cli
