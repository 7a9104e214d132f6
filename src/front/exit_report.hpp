// What is written when the process ends: GPUMEM_STATS and the rest of GPUMEM_TRACE.
//
// An allocator that is still there at exit is reported and then left alone: no driver call is made from here, the
// driver may be gone already. Any thread.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "gpumem/allocator.hpp"

namespace gpumem {

/// Runs `report` at process exit, unless `forget_at_exit` comes first.
void remember_at_exit(const void* who, std::function<void()> report);
void forget_at_exit(const void* who);

/// `target` is `exit` for a summary on stderr, else a file for JSON: `{"schema":1,"devices":[{...}]}`, in a job
/// with `rank` and `local_rank`.
status write_statistics(const std::string& target, std::span<const logical_device> devices,
                        std::span<const statistics> figures);

}  // namespace gpumem
