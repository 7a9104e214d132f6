// The cause of a refused request in a recording, and the settings that serve it, by replay.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "gpumem/status.hpp"
#include "live_memory.hpp"
#include "trace.hpp"

namespace gpumem::cli {

/// One refused request, its cause, and the settings that serve it.
struct diagnosis {
  bench::trace asked;  ///< the recording up to the request (until_refusal)
  bench::refused_request request;
  live_memory held;
  std::uint64_t capacity_bytes = 0;                                 ///< the memory available to the program; 0: unknown
  std::string cause;                                                ///< fragmentation, full, pending_work or unknown
  bool grows_for_ever = false;                                      ///< settings only delay the program's end
  nlohmann::ordered_json within = nlohmann::ordered_json::array();  ///< rows of `advise` within the capacity
  /// Rows without a limit, if none within the capacity serves the request.
  nlohmann::ordered_json beyond = nlohmann::ordered_json::array();

  [[nodiscard]] std::uint64_t needed_bytes() const;
};

/// The last refused request whose size the next allocation does not repeat; if there is none, the last one. Null if
/// nothing was refused.
const bench::refused_request* most_telling(const bench::trace& recorded);

/// `capacity` replaces the capacity of the recording, if it is not 0.
status diagnose(const bench::trace& recorded, const bench::refused_request& request, std::uint64_t capacity,
                diagnosis& diagnosed);

/// A sentence without its stop, beginning with the cause.
std::string explanation(const diagnosis& diagnosed);

/// The best rows that serve the request and the program's next steps, without rows of equal figures; if none serves
/// both, those that serve the request. Adds the limit that a row needs to its `set`. Empty for a program that grows for
/// ever.
nlohmann::ordered_json settings_that_serve(const diagnosis& diagnosed);

}  // namespace gpumem::cli
