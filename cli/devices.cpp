#include "devices.hpp"

#include <fmt/format.h>

#include "device_figures.hpp"
#include "job_rank.hpp"
#include "print_error.hpp"
#include "text.hpp"

namespace gpumem::cli {

int show_devices(const devices_options& options) {
  nlohmann::json devices = nlohmann::json::array();
  if (const status told = device_figures(devices); !told) {
    if (options.json) {
      const nlohmann::json nothing{
          {"schema", 1}, {"devices", nlohmann::json::array()}, {"mps", mps_figures()}, {"problem", told.message()}};
      fmt::print("{}\n", nothing.dump(2, ' ', true, nlohmann::json::error_handler_t::replace));
      return 1;
    }
    print_error("gpumem: {}{}\n", rank_prefix(), printable(told.message(), 8192));
    return 1;
  }
  const nlohmann::json mps = mps_figures();
  if (options.json) {
    const nlohmann::json all{{"schema", 1}, {"devices", devices}, {"mps", mps}, {"problem", ""}};
    fmt::print("{}\n", all.dump(2, ' ', true, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  fmt::print("{}\n", device_table(devices));
  const std::string folder = printable(mps["pipe_directory"].get<std::string>());
  if (mps["control_daemon"]) {
    fmt::print("The driver can hold a process to a limit: MPS answers in {} (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT).\n",
               folder);
  } else {
    fmt::print("The driver holds no process to a limit: no MPS control daemon in {}.\n", folder);
  }
  return 0;
}

}  // namespace gpumem::cli
