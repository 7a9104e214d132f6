// What the inline functions of an allocator call: a hit, a free that a cache takes, and what follows where there is
// none.
//
// The hot ones are leaves without a frame. After a miss, a request comes as the values that it has and is made one
// again here, so that a caller who hits has written nothing to memory for it; so does a free that states nothing.
#include <utility>

#include "gpumem/allocator.hpp"
#include "log.hpp"
#include "pointers.hpp"
#include "pool_hit.hpp"

namespace gpumem {
namespace {

/// What a free states that states nothing: of one address, so that none has to be made where a call may need it.
constexpr release nothing{};

static_assert(sizeof(request) == sizeof(std::size_t) + sizeof(stream_ref) + 2 * sizeof(std::size_t),
              "a new field of a request has to reach do_allocate after a miss, too");
static_assert(sizeof(release) ==
                  sizeof(std::optional<stream_ref>) + sizeof(std::optional<std::size_t>) + sizeof(std::optional<int>),
              "what a release may state has to be asked for in states_nothing, too");

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

result<void*> allocator::allocate_after_miss(std::size_t bytes, void* stream, int device, std::size_t alignment,
                                             oom_report* report) {
  const request r{.bytes = bytes, .stream = {stream}, .device = device, .alignment = alignment};
  if (report == nullptr) return do_allocate(r, nullptr);
  oom_slot refusal;
  result<void*> p = do_allocate(r, &refusal);
  if (refusal) *report = std::move(*refusal);
  return p;
}

void* allocator::allocate_after_miss_or_throw(std::size_t bytes, void* stream, int device, std::size_t alignment) {
  oom_slot refusal;
  result<void*> p =
      do_allocate({.bytes = bytes, .stream = {stream}, .device = device, .alignment = alignment}, &refusal);
  if (p) [[likely]]
    return *p;
  if (p.code() == errc::out_of_memory) throw out_of_memory{refusal ? std::move(*refusal) : oom_report{}};
  throw bad_request{p.why()};
}

status allocator::free_after_miss(void* p) { return do_deallocate(p, nothing); }

void allocator::free_after_miss_or_log(void* p) noexcept { deallocate_or_log(p, nothing); }

void allocator::deallocate_or_log(void* p, const release& stated) noexcept {
  if (const status freed = do_deallocate(p, stated); !freed) log_line("refused free: " + freed.message());
}

}  // namespace gpumem
