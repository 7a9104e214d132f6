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
  baseline_allocator(cuda_replay_device& on, gpumem_baseline* under, const std::string& kind)
      : on_{on},
        api_{on.api()},
        under_{under},
        devices_{{.ordinal = 0, .physical_ordinal = on.ordinal(), .name = kind, .policy = kind}} {
    on_.reserved_by([this] { return api_.reserved_bytes(under_); });
  }
  ~baseline_allocator() override {
    on_.reserved_by({});
    for (const auto& [p, b] : live_)
      api_.release(under_, p, b.stream.handle);  // left over by a replay that ended early
    api_.close(under_);
  }
  baseline_allocator(const baseline_allocator&) = delete;
  baseline_allocator& operator=(const baseline_allocator&) = delete;

  result<void*> do_allocate(const request& r, oom_slot* refusal) override {
    void* p = nullptr;
    const int code = api_.allocate(under_, &p, r.bytes, r.stream.handle);
    if (code == 0) {
      live_.emplace(p, block{r.bytes, r.stream, {}});
      figures_.live_bytes += round_up(r.bytes, block_granularity);
      figures_.requested_bytes += r.bytes;
      return p;
    }
    if (code != cuda_out_of_memory) return failed("allocate", code);
    if (refusal != nullptr) {
      *refusal = std::make_unique<oom_report>();
      (*refusal)->cause = oom_cause::device_full;
    }
    return status{errc::out_of_memory,
                  fmt::format("{} of {} bytes: {}", devices_[0].name, r.bytes, api_.error_text(code))};
  }

  status do_deallocate(void* p, const free_args& /*stated*/) override {
    const auto found = live_.find(p);
    if (found == live_.end()) return {errc::unknown_pointer, fmt::format("{} is not a live block", p)};
    const block& b = found->second;
    for (const stream_ref user : b.users) {
      if (const int code = api_.order(user.handle, b.stream.handle); code != 0) return failed("order", code);
    }
    if (const int code = api_.release(under_, p, b.stream.handle); code != 0) return failed("free", code);
    figures_.live_bytes -= round_up(b.bytes, block_granularity);
    figures_.requested_bytes -= b.bytes;
    live_.erase(found);
    return {};
  }

  status record_use(void* p, stream_ref s) override {
    const auto found = live_.find(p);
    if (found == live_.end()) return {errc::unknown_pointer, fmt::format("{} is not a live block", p)};
    std::vector<stream_ref>& users = found->second.users;
    if (s != found->second.stream && std::find(users.begin(), users.end(), s) == users.end()) users.push_back(s);
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
    statistics now = figures_;
    now.reserved_bytes = api_.reserved_bytes(under_);
    return now;
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
  [[nodiscard]] status failed(std::string_view what, int code) const {
    return {errc::device_error, fmt::format("{}: {} failed: {}", devices_[0].name, what, api_.error_text(code))};
  }

  cuda_replay_device& on_;
  const gpumem_baseline_api& api_;
  gpumem_baseline* under_;
  std::vector<logical_device> devices_;
  std::unordered_map<void*, block> live_;
  statistics figures_;
};

}  // namespace

result<std::unique_ptr<allocator>> open_baseline(cuda_replay_device& on, const std::string& kind) {
  gpumem_baseline* const under = on.api().open(kind.c_str(), on.ordinal());
  if (under == nullptr) {
    return status{errc::device_error, fmt::format("baseline {} cannot be opened on device {}", kind, on.ordinal())};
  }
  return std::unique_ptr<allocator>{std::make_unique<baseline_allocator>(on, under, kind)};
}

}  // namespace gpumem::bench
