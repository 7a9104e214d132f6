// `gpumem simulate`: a program on simulated cards, and what it took of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace gpumem::cli {

struct simulate_options {
  std::string card = "h100";
  std::string context = "450MiB";
  std::string modules = "0";  ///< of each that is loaded
  std::string libraries = "0";
  std::string cudnn_workspace = "0";
  std::string settle = "10m";
  int cards = 1;
  std::string shared;  ///< a name of cards that several runs share; empty: none
  std::string policy;
  std::string limit;
  std::string report;
  std::string json;
  std::string trace;
  bool quiet = false;
  bool referee = false;
  std::vector<std::string> command;
};

CLI::App* add_simulate_command(CLI::App& to, simulate_options& into);

/// The command's own exit status; 1 where what is needed is not there; 2 for anything wrong with the words.
int simulate(const simulate_options& with);

}  // namespace gpumem::cli
