/// An allocator with faults that a replay must detect: it hands out freed blocks at once, even if a stream still uses
/// them, and it ignores uses on other streams.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "gpumem/allocator.hpp"

namespace gpumem::bench {

class early_allocator final : public allocator {
 public:
  explicit early_allocator(device& on) : begin_{*on.alloc(std::uint64_t{64} << 20)}, next_{begin_} {}

  result<void*> do_allocate(const request& r, oom_slot*) override {
    auto& same_size = free_[r.bytes];
    if (same_size.empty()) {
      same_size.push_back(next_);
      next_ += (r.bytes + 511) / 512 * 512;
    }
    const address at = same_size.back();
    same_size.pop_back();
    live_[at] = r.bytes;
    return reinterpret_cast<void*>(at);
  }
  status do_deallocate(void* p, const free_args&) override {
    if (refuse_frees) return {errc::double_free, "planted"};
    const auto found = live_.find(reinterpret_cast<address>(p));
    free_[found->second].push_back(found->first);
    live_.erase(found);
    return {};
  }
  status record_use(void*, stream_ref) override { return {}; }
  status stream_release(stream_ref) override { return {}; }
  status capture_begin(stream_ref) override { return {}; }
  result<graph_ref> capture_end(stream_ref) override { return graph_ref{}; }
  status graph_release(graph_ref) override { return {}; }
  result<trim_result> trim(int, std::uint64_t) override { return trim_result{}; }
  result<limit_result> set_limit(int, std::uint64_t) override { return limit_result{}; }
  void on_out_of_memory(oom_callback) override {}
  const std::vector<logical_device>& devices() const noexcept override { return devices_; }
  result<statistics> stats(int) const override { return statistics{}; }
  result<block_info> describe(const void*) const override { return block_info{}; }
  status check(int) const override { return sound ? status{} : status{errc::corrupt, "planted"}; }
  status flush_trace() override { return {}; }

  bool refuse_frees = false;
  bool sound = true;

 private:
  address begin_;
  address next_;
  std::map<std::uint64_t, std::vector<address>> free_;
  std::map<address, std::uint64_t> live_;
  std::vector<logical_device> devices_ = std::vector<logical_device>(1);
};

}  // namespace gpumem::bench
