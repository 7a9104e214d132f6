#include "baseline_allocator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "bits.hpp"

namespace gpumem::bench {
namespace {

constexpr int cuda_out_of_memory = 2;

class baseline_allocator final : public allocator {
 public:
  baseline_allocator(cuda_replay_device& replay_device, gpumem_baseline* baseline, const std::string& kind)
      : replay_device_{replay_device},
        api_{replay_device.api()},
        baseline_{baseline},
        devices_{{.ordinal = 0, .physical_ordinal = replay_device.ordinal(), .name = kind, .policy = kind}} {
    replay_device_.reserved_by([this] { return api_.reserved_bytes(baseline_); });
  }
  ~baseline_allocator() override {
    replay_device_.reserved_by({});
    for (const auto& [p, b] : live_)
      api_.release(baseline_, p, b.stream.handle);  // left over by a replay that ended early
    api_.close(baseline_);
  }
  baseline_allocator& operator=(baseline_allocator&&) = delete;

  result<void*> do_allocate(const request& request, oom_slot* refusal) override {
    void* p = nullptr;
    const int code = api_.allocate(baseline_, &p, request.bytes, request.stream.handle);
    if (code == 0) {
      live_.emplace(p, block{request.bytes, request.stream, {}});
      figures_.live_bytes += round_up(request.bytes, block_granularity);
      figures_.requested_bytes += request.bytes;
      return p;
    }
    if (code != cuda_out_of_memory) return failed("allocate", code);
    if (refusal != nullptr) {
      *refusal = std::make_unique<oom_report>();
      (*refusal)->cause = oom_cause::device_full;
    }
    return status{errc::out_of_memory,
                  fmt::format("{} of {} bytes: {}", devices_[0].name, request.bytes, api_.error_text(code))};
  }

  status do_deallocate(void* pointer, const free_args& /*stated*/) override {
    const auto found = live_.find(pointer);
    if (found == live_.end()) return {errc::unknown_pointer, fmt::format("{} is not a live block", pointer)};
    const block& b = found->second;
    for (const stream_ref user : b.users) {
      if (const int code = api_.order(user.handle, b.stream.handle); code != 0) return failed("order", code);
    }
    if (const int code = api_.release(baseline_, pointer, b.stream.handle); code != 0) return failed("free", code);
    figures_.live_bytes -= round_up(b.bytes, block_granularity);
    figures_.requested_bytes -= b.bytes;
    live_.erase(found);
    return {};
  }

  status record_use(void* pointer, stream_ref stream) override {
    const auto found = live_.find(pointer);
    if (found == live_.end()) return {errc::unknown_pointer, fmt::format("{} is not a live block", pointer)};
    std::vector<stream_ref>& users = found->second.users;
    if (stream != found->second.stream && std::find(users.begin(), users.end(), stream) == users.end())
      users.push_back(stream);
    return {};
  }

  status stream_release(stream_ref /*s*/) override { return {}; }
  status capture_begin(stream_ref /*s*/) override { return absent(); }
  result<graph_ref> capture_end(stream_ref /*s*/) override { return absent(); }
  status graph_release(graph_ref /*g*/) override { return absent(); }
  result<trim_result> trim(int /*device*/, std::uint64_t /*bytes*/) override { return trim_result{}; }
  result<limit_result> set_limit(int /*device*/, std::uint64_t /*limit_bytes*/) override { return absent(); }
  void on_out_of_memory(oom_callback /*callback*/) override {}
  [[nodiscard]] const std::vector<logical_device>& devices() const noexcept override { return devices_; }
  [[nodiscard]] result<statistics> stats(int /*device*/) const override {
    statistics current = figures_;
    current.reserved_bytes = api_.reserved_bytes(baseline_);
    return current;
  }
  [[nodiscard]] result<block_info> describe(const void* /*p*/) const override { return absent(); }
  [[nodiscard]] status check(int /*device*/) const override { return {}; }
  status flush_trace() override { return {}; }

 private:
  struct block {
    std::size_t bytes;
    stream_ref stream;
    std::vector<stream_ref> users;
  };

  [[nodiscard]] static status absent() { return {errc::unsupported, "not supported by a baseline"}; }
  [[nodiscard]] status failed(std::string_view operation, int code) const {
    return {errc::device_error, fmt::format("{}: {} failed: {}", devices_[0].name, operation, api_.error_text(code))};
  }

  cuda_replay_device& replay_device_;
  const gpumem_baseline_api& api_;
  gpumem_baseline* baseline_;
  std::vector<logical_device> devices_;
  std::unordered_map<void*, block> live_;
  statistics figures_;
};

}  // namespace

result<std::unique_ptr<allocator>> open_baseline(cuda_replay_device& replay_device, const std::string& kind) {
  gpumem_baseline* const baseline = replay_device.api().open(kind.c_str(), replay_device.ordinal());
  if (baseline == nullptr) {
    return status{errc::device_error,
                  fmt::format("baseline {} cannot be opened on device {}", kind, replay_device.ordinal())};
  }
  return std::unique_ptr<allocator>{std::make_unique<baseline_allocator>(replay_device, baseline, kind)};
}

}  // namespace gpumem::bench
