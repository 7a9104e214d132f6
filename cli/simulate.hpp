// `gpumem simulate`: runs a program on simulated cards and reports the memory it took.
#pragma once

#include <string>
#include <vector>

#include "cli_app.hpp"
#include "values_text.hpp"

namespace gpumem::cli {

struct simulate_options {
  std::string card = "h100";
  std::string context = "450MiB";
  std::string modules = "0";  ///< size of each loaded module
  std::string libraries = "0";
  std::string cudnn_workspace = "0";
  std::string settle = "10m";
  int values = default_values;
  int cards = 1;
  std::string shared;  ///< name of cards shared by several runs; empty: none
  std::string policy;
  std::string limit;
  std::string report;
  std::string json;
  std::string trace;
  bool doctor = false;    ///< prints the requirements that this machine lacks, and runs nothing
  bool one_rank = false;  ///< simulates one rank: NCCL's other ranks send copies of the program's own data
  bool strict = false;    ///< ends the program when it does something that a card leaves undefined
  bool quiet = false;
  bool referee = false;
  std::vector<std::string> command;
};

void add_simulate_command(CLI::App& app, simulate_options& options);

/// The command's own exit status; 1 if a requirement is missing; 2 for wrong arguments.
int simulate(const simulate_options& options);

}  // namespace gpumem::cli
