/// Host memory that runs out when a test says so: the n-th time that this thread asks for any, once.
///
/// This program's operator new, aligned_alloc, mmap and mprotect ask here first. Under a sanitizer, which has such
/// functions of its own, only operator new does.
#pragma once

#include <cstdint>

namespace gpumem::host_memory {

/// Asking is counted from here on, in this thread and while a `watched` lives; the n-th time fails. 0: none does.
void fail_nth(std::uint64_t n) noexcept;
/// It has.
[[nodiscard]] bool failed() noexcept;

class watched {
 public:
  watched() noexcept;
  ~watched();
  watched(const watched&) = delete;
  watched& operator=(const watched&) = delete;
};

/// What is asked for while this lives is not counted.
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
