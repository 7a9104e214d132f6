#include "look.hpp"

#include <ctime>

#include "device_figures.hpp"
#include "served_figures.hpp"
#include "text.hpp"

namespace gpumem::cli {

look look_now() {
  look current;
  current.devices = nlohmann::json::array();
  if (const status told = device_figures(current.devices); !told) current.problem = printable(told.message(), 8192);
  current.served = served_figures();
  return current;
}

nlohmann::json look_as_json(const look& shown) {
  return {{"schema", 1},
          {"time_s", std::time(nullptr)},
          {"devices", shown.devices},
          {"problem", shown.problem},
          {"served", shown.served}};
}

}  // namespace gpumem::cli
