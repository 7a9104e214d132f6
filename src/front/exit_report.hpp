// Writes GPUMEM_STATS and the rest of GPUMEM_TRACE when the process ends.
//
// Reports allocators that are still open at exit, and leaves them open. Makes no driver call, because the driver may
// already be shut down. Any thread.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "gpumem/allocator.hpp"

namespace gpumem {

/// Runs `report` at process exit, unless `forget_at_exit` comes first.
void remember_at_exit(const void* owner, std::function<void()> report);
void forget_at_exit(const void* owner);

/// Writes statistics: `target` is `exit` for a summary on stderr, else a file for JSON,
/// `{"schema":1,"devices":[{...}]}`, in a job with `rank` and `local_rank`.
status write_statistics(const std::string& target, std::span<const logical_device> devices,
                        std::span<const statistics> figures);

}  // namespace gpumem
