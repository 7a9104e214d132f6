/// The memory events of a replay, from which the HTML report is drawn afterwards.
///
/// The replay logs blocks, and `logged_device` logs the device's memory. One thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "device_decorator.hpp"

namespace gpumem::bench {

enum class memory_change : std::uint8_t {
  taken,       ///< one plain segment, taken from the device
  mapped,      ///< pages; adjacent mappings form one piece
  given_back,  ///< plain or mapped, returned to the device
  allocated,   ///< a block, rounded up to 512
  freed,
};

struct memory_event {
  std::uint64_t op = 0;  ///< the operation that caused the event, from 0
  address begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t requested_bytes = 0;  ///< blocks only
  memory_change change = memory_change::taken;
};

struct memory_log {
  std::vector<memory_event> events;
  std::uint64_t op = 0;  ///< the current operation, kept here by the replay

  void add(memory_change change, address begin, std::uint64_t bytes, std::uint64_t requested_bytes = 0) {
    events.push_back({op, begin, bytes, requested_bytes, change});
  }
};

/// Logs the memory taken and returned.
class logged_device final : public device_decorator {
 public:
  /// Both arguments must outlive this.
  logged_device(device& target, memory_log& log) : device_decorator{target}, log_{log} {}

 private:
  result<address> do_alloc(std::uint64_t bytes) override;
  status do_free(address segment) override;
  status do_map(address begin, std::uint64_t bytes, page_run pages) override;
  status do_unmap(address begin, std::uint64_t bytes) override;

  memory_log& log_;
  std::unordered_map<address, std::uint64_t> segments_;
};

}  // namespace gpumem::bench
