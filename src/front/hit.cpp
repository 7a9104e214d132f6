// What the inline functions of an allocator call: a hit, a free that a cache takes, and what follows where there is
// none.
//
// The hot ones are leaves without a frame. What follows a miss is passed in registers and made a request again here, so
// that a caller who hits has written nothing to memory for it.
#include <utility>

#include "gpumem/allocator.hpp"
#include "log.hpp"
#include "pointers.hpp"
#include "pool_hit.hpp"

namespace gpumem {
namespace {

/// What a free states that states nothing: of one address, so that none has to be made where a call may need it.
constexpr release nothing{};

}  // namespace

void* allocator::hit(std::size_t bytes, void* stream, int device) noexcept {
  const latest_cache& latest = latest_cache_of_thread;
  if (latest.allocator != number_ || latest.device != device) [[unlikely]]
    return nullptr;
  return to_pointer(latest.of->hit(*latest.cache, {stream}, bytes));
}

bool allocator::take_back(void* p) noexcept {
  const latest_cache& latest = latest_cache_of_thread;
  if (latest.allocator != number_) [[unlikely]]
    return false;
  return latest.of->take_back(*latest.cache, to_address(p), nothing);
}

bool allocator::take_back_as_stated(void* p, const release& stated) noexcept {
  const latest_cache& latest = latest_cache_of_thread;
  if (latest.allocator != number_ || stated.device) [[unlikely]]
    return false;
  return latest.of->take_back(*latest.cache, to_address(p), stated);
}

result<void*> allocator::missed(std::size_t bytes, void* stream, int device, std::size_t alignment,
                                oom_report* report) {
  return do_allocate({.bytes = bytes, .stream = {stream}, .device = device, .alignment = alignment}, report);
}

void* allocator::missed_or_throw(std::size_t bytes, void* stream, int device, std::size_t alignment) {
  oom_report report;
  result<void*> p = missed(bytes, stream, device, alignment, &report);
  if (p) return *p;
  if (p.code() == errc::out_of_memory) throw out_of_memory{std::move(report)};
  throw bad_request{p.why()};
}

status allocator::not_taken(void* p) { return do_deallocate(p, nothing); }

void allocator::not_taken_or_log(void* p) noexcept { deallocate_or_log(p, nothing); }

void allocator::deallocate_or_log(void* p, const release& stated) noexcept {
  if (const status freed = do_deallocate(p, stated); !freed) log_line("refused free: " + freed.message());
}

}  // namespace gpumem
