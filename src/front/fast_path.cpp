// The out-of-line part of the allocator's inline functions: tries the thread's cache, then `do_allocate` and
// `do_deallocate`.
#include <utility>

#include "gpumem/allocator.hpp"
#include "latest_hit.hpp"
#include "log.hpp"
#include "pointers.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

void* allocator::try_cache(std::size_t bytes, stream_ref stream, int device) noexcept {
  return to_pointer(allocate_from_latest(number_, device, stream, bytes));
}

bool allocator::free_to_cache(void* pointer, const free_args* stated) noexcept {
  return free_to_latest(number_, to_address(pointer), stated);
}

void* allocator::allocate_or_throw(const request& request) {
  oom_slot refusal;
  result<void*> p = do_allocate(request, &refusal);
  if (p) return *p;
  if (p.code() == errc::out_of_memory) throw out_of_memory{refusal ? std::move(*refusal) : oom_report{}};
  throw bad_request{p.why()};
}

result<void*> allocator::allocate_or_report(const request& request, oom_report* report) {
  if (report == nullptr) return do_allocate(request, nullptr);
  oom_slot refusal;
  result<void*> p = do_allocate(request, &refusal);
  if (refusal) *report = std::move(*refusal);
  return p;
}

void allocator::deallocate_or_log(void* pointer, const free_args& stated) noexcept {
  const status freed = without_exceptions([&] { return do_deallocate(pointer, stated); });
  if (!freed) log_if_possible([&] { return "refused free: " + freed.message(); });
}

}  // namespace gpumem
