// Dumps a pool's history (GPUMEM_HISTORY) as a trace in RMM's CSV format, also to a file when a request runs out of
// memory.
//
// A dump begins with the blocks that were live before the first kept event, as rows of thread 0 at time 0, so that a
// replay has the same live memory. Any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "checked_mutex.hpp"
#include "gpumem/settings.hpp"
#include "recording_file.hpp"
#include "written_file.hpp"

namespace gpumem {

class pool;
class pooled_allocator;

/// Answers a request of `gpumem dump` by writing to `descriptor`, which is a regular file: `trace` asks for the
/// histories, one trace after another, `events` for the latest events of the slow paths as text. The message of an
/// error names a remedy.
status write_dump(std::span<pooled_allocator* const> allocators, std::string_view contents, int descriptor);

/// The file of GPUMEM_TRACE if GPUMEM_HISTORY is set too.
class history_file {
 public:
  /// Creates or empties the file of a logical device. Null unless both are set; `bad_setting` names path and reason.
  static result<std::unique_ptr<history_file>> open(const settings& options, int logical);

  /// Call when a request runs out of memory. Writes the history, unless it has fewer new events than a tenth of the
  /// rows written last. Logs the first dump, and errors. In a forked child it does nothing.
  void refused(const pool& dumped) noexcept;
  /// Replaces the contents of the file by the history. Not in a forked child, whose parent writes the file.
  status write(const pool& dumped);
  [[nodiscard]] const std::string& path() const noexcept { return own_.path(); }

 private:
  explicit history_file(written_file own) : own_{std::move(own)} {}
  status replace(const pool& dumped) GPUMEM_REQUIRES(mutex_);

  written_file own_;
  checked_mutex mutex_;
  std::uint64_t written_rows_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::uint64_t written_at_ GPUMEM_GUARDED_BY(mutex_) = 0;  ///< the pool's event count at the last dump
};

}  // namespace gpumem
