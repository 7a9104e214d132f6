#include "memory_log.hpp"

namespace gpumem::bench {

result<address> logged_device::do_alloc(std::uint64_t bytes) {
  auto got = device_decorator::do_alloc(bytes);
  if (got) {
    segments_.emplace(*got, bytes);
    log_.add(memory_change::taken, *got, bytes);
  }
  return got;
}

status logged_device::do_free(address segment) {
  status went = device_decorator::do_free(segment);
  if (const auto found = segments_.find(segment); went.ok() && found != segments_.end()) {
    log_.add(memory_change::given_back, segment, found->second);
    segments_.erase(found);
  }
  return went;
}

status logged_device::do_map(address begin, std::uint64_t bytes, page_run pages) {
  status went = device_decorator::do_map(begin, bytes, pages);
  if (went.ok()) log_.add(memory_change::mapped, begin, bytes);
  return went;
}

status logged_device::do_unmap(address begin, std::uint64_t bytes) {
  status went = device_decorator::do_unmap(begin, bytes);
  if (went.ok()) log_.add(memory_change::given_back, begin, bytes);
  return went;
}

}  // namespace gpumem::bench
