#include "latency_subjects.hpp"

#include <fmt/format.h>

#include <array>

#include "gpumem/cuda_device.hpp"

namespace gpumem::bench {
namespace {

constexpr unsigned most_streams = 64;

class gpumem_subject final : public latency_subject {
 public:
  static result<std::unique_ptr<latency_subject>> open(const policy_row& row, const replay_setup& setup,
                                                       cuda_stage* stage) {
    auto out = std::make_unique<gpumem_subject>();
    if (setup.cuda) {
      auto opened = open_cuda_device({.ordinal = setup.cuda->info.ordinal});
      if (!opened) return opened.why();
      out->on_ = *std::move(opened);
    } else {
      sim_config config = setup.device;
      config.referee = false;
      auto sim = std::make_unique<sim_device>(config);
      out->sim_ = sim.get();
      out->on_ = std::move(sim);
    }
    const std::array<device*, 1> devices{out->on_.get()};
    auto opened = allocator::open(devices, row.with);
    if (!opened) return opened.why();
    out->over_ = *std::move(opened);
    for (unsigned i = 0; i < most_streams; ++i) {
      out->streams_.push_back(out->sim_ != nullptr ? out->sim_->create_stream() : stage->create_stream());
    }
    return std::unique_ptr<latency_subject>{std::move(out)};
  }
  void* allocate(std::size_t bytes, stream_ref s) override {
    const result<void*> got = over_->try_allocate({.bytes = bytes, .stream = s});
    return got ? *got : nullptr;
  }
  void release(void* p, stream_ref s) override { static_cast<void>(over_->try_deallocate(p, {.stream = s})); }
  stream_ref stream(unsigned i) override { return streams_[i % most_streams]; }

 private:
  std::unique_ptr<device> on_;
  sim_device* sim_ = nullptr;
  std::unique_ptr<allocator> over_;
  std::vector<stream_ref> streams_;
};

class baseline_subject final : public latency_subject {
 public:
  baseline_subject(cuda_stage& stage, gpumem_baseline* under, std::string kind)
      : api_{stage.api()}, under_{under}, kind_{std::move(kind)} {
    for (unsigned i = 0; i < most_streams; ++i) streams_.push_back(stage.create_stream());
  }
  ~baseline_subject() override { api_.close(under_); }
  baseline_subject(const baseline_subject&) = delete;
  baseline_subject& operator=(const baseline_subject&) = delete;

  void* allocate(std::size_t bytes, stream_ref s) override {
    void* p = nullptr;
    return api_.allocate(under_, &p, bytes, s.handle) == 0 ? p : nullptr;
  }
  void release(void* p, stream_ref s) override { api_.release(under_, p, s.handle); }
  stream_ref stream(unsigned i) override { return streams_[i % most_streams]; }
  bool driver_part(stream_ref s) override { return api_.runtime_calls_of_a_pair(under_, s.handle) == 0; }
  [[nodiscard]] bool caches() const override { return kind_ != "cuda_malloc"; }

 private:
  const gpumem_baseline_api& api_;
  gpumem_baseline* under_;
  std::string kind_;
  std::vector<stream_ref> streams_;
};

}  // namespace

result<std::unique_ptr<latency_subject>> open_latency_subject(const policy_row& row, const replay_setup& setup,
                                                              cuda_stage* stage) {
  if (row.baseline.empty()) return gpumem_subject::open(row, setup, stage);
  gpumem_baseline* const under = stage->api().open(row.baseline.c_str(), stage->ordinal());
  if (under == nullptr) {
    return status{errc::device_error, fmt::format("baseline {} cannot be opened", row.baseline)};
  }
  return std::unique_ptr<latency_subject>{std::make_unique<baseline_subject>(*stage, under, row.baseline)};
}

}  // namespace gpumem::bench
