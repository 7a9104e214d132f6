/// CUDA streams and memory for a replay: on a GPU, or on the simulated driver with its clock and referee.
///
/// Has the functions of sim_device that a replay calls, under the same names, so that one loop serves both. The plug-in
/// with the baselines creates the streams and the work through the CUDA runtime. A process has one driver, so one such
/// device is open at a time: opening a second one waits for the first. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "baseline.h"
#include "gpumem/device.hpp"
#include "gpumem/sim_device.hpp"
#include "gpumem/status.hpp"

namespace gpumem::bench {

struct simcuda_functions;

struct cuda_replay_config {
  bool simulated = true;  ///< uses the simulated driver; otherwise a GPU
  int ordinal = 0;
  std::uint64_t bytes = 0;  ///< memory of the simulated device
  bool referee = true;
  std::uint64_t granularity_bytes = std::uint64_t{2} << 20;  ///< of cudaMalloc on the simulated device
  std::string plug_in{};                                     ///< a file; empty: the project's own baselines
  bool works = true;  ///< false: streams get no work, so that only the allocator's calls take time
};

class cuda_replay_device {
 public:
  /// `unsupported` if this build or installation lacks the plug-in or the simulated driver.
  static result<std::unique_ptr<cuda_replay_device>> open(const cuda_replay_config& config);
  ~cuda_replay_device();
  cuda_replay_device& operator=(cuda_replay_device&&) = delete;

  // --- the functions of sim_device that a replay calls ----------------------------------------------------
  stream_ref create_stream();
  void advance_by(std::uint64_t ns);
  void advance_to(std::uint64_t ns);
  void enqueue_use(stream_ref stream, std::uint64_t lag_ns, address block_address, std::uint64_t bytes);
  void handed_out(address block_address, std::uint64_t bytes, stream_ref stream);
  void given_back(address block_address);
  /// Bytes taken from the device: counted by the simulated driver, or by `reserved_by` on a GPU.
  [[nodiscard]] std::uint64_t used_bytes();

  // --- further functions ----------------------------------------------------------------------------------
  [[nodiscard]] const gpumem_baseline_api& api() const noexcept { return *api_; }
  [[nodiscard]] int ordinal() const noexcept { return config_.ordinal; }
  [[nodiscard]] bool simulated() const noexcept { return config_.simulated; }
  /// Sets the source of `used_bytes` on a GPU, where only the allocator knows it.
  void reserved_by(std::function<std::uint64_t()> asks) { asks_reserved_ = std::move(asks); }
  [[nodiscard]] std::uint64_t peak_used_bytes();
  [[nodiscard]] std::optional<std::uint64_t> hazards();      ///< none on a GPU
  [[nodiscard]] std::optional<call_counts> device_calls();   ///< none on a GPU
  [[nodiscard]] std::optional<std::uint64_t> in_calls_ns();  ///< virtual; none on a GPU

 private:
  explicit cuda_replay_device(const cuda_replay_config& config) : config_{config} {}

  cuda_replay_config config_;
  std::unique_lock<std::mutex> only_;
  const gpumem_baseline_api* api_ = nullptr;
  const simcuda_functions* sim_ = nullptr;  ///< null on a GPU
  std::vector<void*> streams_;
  std::function<std::uint64_t()> asks_reserved_;
  std::uint64_t peak_used_ = 0;
};

/// Loads the simulated driver as this process's driver for `open_cuda_device`. Call once, before any other driver is
/// loaded.
status load_simulated_driver();
/// Loads the simulated driver, shared runtime and NVML. Libraries loaded afterwards resolve their sonames to these.
status load_simulated_runtime();
/// Loads a plug-in with baselines and its dependencies.
status load_plug_in(const std::string& path);

}  // namespace gpumem::bench
