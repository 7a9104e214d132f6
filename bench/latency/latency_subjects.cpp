#include "latency_subjects.hpp"

#include <fmt/format.h>

#include <numeric>

#include "assign_or_return.hpp"
#include "bits.hpp"
#include "gpumem/cuda_device.hpp"

namespace gpumem::bench {

result<std::unique_ptr<gpumem_subject>> gpumem_subject::open(const policy_row& row, const replay_setup& setup,
                                                             cuda_replay_device* replay_device, std::size_t streams) {
  auto opened_subject = std::make_unique<gpumem_subject>();
  if (setup.cuda) {
    ASSIGN_OR_RETURN(opened_subject->device_, open_cuda_device({.ordinal = setup.cuda->info.ordinal}));
  } else {
    sim_config config = setup.device;
    config.referee = false;
    auto sim = std::make_unique<sim_device>(config);
    opened_subject->sim_ = sim.get();
    opened_subject->device_ = std::move(sim);
  }
  const std::array<device*, 1> devices{opened_subject->device_.get()};
  ASSIGN_OR_RETURN(opened_subject->memory_, allocator::open(devices, row.config));
  for (std::size_t i = 0; i < std::max<std::size_t>(streams, 1); ++i) {
    opened_subject->streams_.push_back(opened_subject->sim_ != nullptr ? opened_subject->sim_->create_stream()
                                                                       : replay_device->create_stream());
  }
  return opened_subject;
}

bool gpumem_subject::driver_part(stream_ref stream) {
  if (!asks_a_pair_) {
    constexpr unsigned pairs = 64;
    const auto asked = [this] { return device_->calls()[static_cast<std::size_t>(device_call::stream_id)]; };
    std::uint64_t before = 0;
    for (unsigned i = 0; i < 2 * pairs; ++i) {  // the first half takes the block from the device
      if (i == pairs) before = asked();
      release(allocate(4 * kib, stream), stream);
    }
    asks_a_pair_ = static_cast<unsigned>((asked() - before) / pairs);
  }
  for (unsigned i = 0; i < *asks_a_pair_; ++i) static_cast<void>(device_->stream_id(stream));
  return *asks_a_pair_ != 0;
}

std::uint64_t gpumem_subject::device_calls() const {
  const call_counts all = device_->calls();
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0}) -
         all[static_cast<std::size_t>(device_call::stream_id)] - all[static_cast<std::size_t>(device_call::capture_id)];
}

baseline_subject::baseline_subject(cuda_replay_device& replay_device, gpumem_baseline* baseline, std::string kind,
                                   std::size_t streams)
    : api_{replay_device.api()}, baseline_{baseline}, kind_{std::move(kind)}, ordinal_{replay_device.ordinal()} {
  for (std::size_t i = 0; i < std::max<std::size_t>(streams, 1); ++i) streams_.push_back(replay_device.create_stream());
}

result<std::unique_ptr<baseline_subject>> baseline_subject::open(const policy_row& row, const replay_setup& /*setup*/,
                                                                 cuda_replay_device* replay_device,
                                                                 std::size_t streams) {
  gpumem_baseline* const baseline = replay_device->api().open(row.baseline.c_str(), replay_device->ordinal());
  if (baseline == nullptr) {
    return status{errc::device_error, fmt::format("baseline {} cannot be opened", row.baseline)};
  }
  return std::make_unique<baseline_subject>(*replay_device, baseline, row.baseline, streams);
}

}  // namespace gpumem::bench
