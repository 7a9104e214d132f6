// A request of the program's that failed is said on stderr, at most once a second, and counted in the file that
// GPUMEM_OOM_FILE names, for whoever wants to know when the program is over (`gpumem run`). Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace gpumem::preload {

struct served_context;

/// What the program called, and for how much.
struct refused_request {
  const char* function;
  std::uint64_t bytes;
};

/// A request of gpumem's own memory. `why`: one line, as oom_report::headline. Under a limit on the process it gets the
/// figures of what is not gpumem's. A simulated card (simcuda/control.h) is told, too, unless it refused gpumem itself.
void note_out_of_memory(const served_context& device, const refused_request& request, const std::string& why) noexcept;

/// The same of a call that gpumem passes on and its account, or the driver, refuses.
void note_refused_call(int ordinal, std::uint64_t bytes, bool by_account) noexcept;

}  // namespace gpumem::preload
