// The command line of `train_mlp` and `towers`, and the file of their figures. program.cpp keeps the libraries for both
// out of what nvcc compiles.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace train {

struct options {
  std::string device;
  std::string allocator = "gpumem";
  int steps = 200;
  unsigned seed = 1;
  std::size_t hidden = 64;
  std::string json_path;
};

struct figures;
using figure = std::variant<bool, int, unsigned, std::uint64_t, float, double, std::string, std::vector<figures>>;
struct figures : std::map<std::string, figure> {
  using map::map;
};

/// Writes the figures as JSON to the file of `--json`, if there is one. Throws std::invalid_argument if it cannot.
void write(const figures& all, const options& with);

/// Reads the command line and calls `run`. Returns its status, 1 if it throws, and 2 for words that are wrong or where
/// it throws std::invalid_argument; the reason goes to standard error.
int run_program(const std::string& name, const std::string& purpose, bool takes_allocator, int argc, char** argv,
                const std::function<int(const options&)>& run);

}  // namespace train
