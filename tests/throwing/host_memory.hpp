/// Host memory that runs out at a chosen point: the n-th allocation of this thread fails, once.
///
/// This program's operator new, aligned_alloc, mmap and mprotect ask here first. Sanitizers replace these functions;
/// there only operator new does.
#pragma once

#include <cstdint>

namespace gpumem::host_memory {

/// Counts allocations from here on, in this thread and while a `watched` lives; the n-th fails. 0: none fails.
void fail_nth(std::uint64_t n) noexcept;
/// Whether the failure has occurred.
[[nodiscard]] bool failed() noexcept;

class watched {
 public:
  watched() noexcept;
  ~watched();
  watched(const watched&) = delete;
  watched& operator=(const watched&) = delete;
};

/// Allocations during its life are not counted.
class unwatched {
 public:
  unwatched() noexcept;
  ~unwatched();
  unwatched(const unwatched&) = delete;
  unwatched& operator=(const unwatched&) = delete;

 private:
  int before_;
};

}  // namespace gpumem::host_memory
