// Reports failed requests of the program on stderr, at most once a second, and counts them in the file that
// GPUMEM_OOM_FILE names, which `gpumem run` reads when the program has ended. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "gpumem/statistics.hpp"

namespace gpumem::preload {

struct served_context;

/// The function that the program called, and the size it requested.
struct refused_request {
  const char* function;
  std::uint64_t bytes;
};

/// Reports a refused request for gpumem's memory. `why`: one line, as oom_report::headline. Under a limit on the
/// process, adds the figures of memory outside gpumem. Also calls the driver's gpumem_refusal_callback
/// (gpumem/gpumem.h), unless the driver itself refused.
void note_out_of_memory(const served_context& device, const refused_request& request, const std::string& why,
                        const oom_report& report) noexcept;

/// Reports a forwarded call that its account, or the driver, refused.
void note_refused_call(int ordinal, std::uint64_t bytes, bool by_account) noexcept;

}  // namespace gpumem::preload
