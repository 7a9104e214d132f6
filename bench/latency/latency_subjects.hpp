/// The subjects of `latency`: types that allocate and free from any thread.
///
/// Cases are templates over these types, so that no virtual call of the bench is timed.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda_replay_device.hpp"
#include "gpumem/allocator.hpp"
#include "latency.hpp"
#include "measure.hpp"
#include "policy_row.hpp"

namespace gpumem::bench {

/// A gpumem allocator on its own simulated device, or on the GPU.
class gpumem_subject {
 public:
  static result<std::unique_ptr<gpumem_subject>> open(const policy_row& row, const replay_setup& setup,
                                                      cuda_replay_device* replay_device, std::size_t streams);

  /// Uses the calls that programs use. Null on failure.
  void* allocate(std::size_t bytes, stream_ref stream) {
    try {
      return memory_->allocate(bytes, stream);
    } catch (const std::exception&) {
      return nullptr;
    }
  }
  /// Frees in the order of the block's own stream.
  void release(void* block, stream_ref /*own*/) { memory_->deallocate(block); }
  /// The stream of the i-th thread.
  [[nodiscard]] stream_ref stream(std::size_t index) const { return streams_[index % streams_.size()]; }
  /// Call first on every thread except the one that opened the subject.
  void enter_thread() {}
  /// Pairs in a repetition, about a millisecond.
  static constexpr std::size_t pair_iterations = 80'000;
  /// Repetitions of pairs on several threads, of walks and of handoff.
  static constexpr int repetitions = latency_repetitions;
  /// Batches in a repetition of handoff: some milliseconds, most of them after both processors have woken up.
  static constexpr std::size_t handoff_iterations = 64;
  /// Whether allocating a freed block of this size again needs no device call.
  [[nodiscard]] static bool caches(std::size_t /*bytes*/) { return true; }
  [[nodiscard]] static bool caches_every_size() { return true; }

  /// Makes the device calls of a cached pair (the query of the stream's id). False if there are none.
  bool driver_part(stream_ref stream);
  /// Device calls so far, without the calls that every pair makes.
  static constexpr bool counts_device_calls = true;
  /// Each repetition of `worst` opens a new subject.
  static constexpr bool opened_anew = true;
  [[nodiscard]] std::uint64_t device_calls() const;

 private:
  std::unique_ptr<device> device_;
  sim_device* sim_ = nullptr;
  std::unique_ptr<allocator> memory_;
  std::vector<stream_ref> streams_;
  std::optional<unsigned> asks_a_pair_;
};

/// A baseline of the plug-in.
class baseline_subject {
 public:
  static result<std::unique_ptr<baseline_subject>> open(const policy_row& row, const replay_setup& setup,
                                                        cuda_replay_device* replay_device, std::size_t streams);
  baseline_subject(cuda_replay_device& replay_device, gpumem_baseline* baseline, std::string kind, std::size_t streams);
  ~baseline_subject() { api_.close(baseline_); }
  baseline_subject& operator=(baseline_subject&&) = delete;

  void* allocate(std::size_t bytes, stream_ref stream) {
    void* p = nullptr;
    return api_.allocate(baseline_, &p, bytes, stream.handle) == 0 ? p : nullptr;
  }
  void release(void* block, stream_ref own) { api_.release(baseline_, block, own.handle); }
  [[nodiscard]] stream_ref stream(std::size_t index) const { return streams_[index % streams_.size()]; }
  void enter_thread() { api_.set_device(ordinal_); }
  static constexpr std::size_t pair_iterations = 8000;
  static constexpr int repetitions = latency_long_repetitions;
  static constexpr std::size_t handoff_iterations = 4;
  [[nodiscard]] bool caches(std::size_t bytes) const {
    return kind_ == "cub_default" ? bytes <= std::size_t{2} << 20 : kind_ != "cuda_malloc";
  }
  /// In a replay, uncached sizes would go to the device, which `latency` does not time.
  [[nodiscard]] bool caches_every_size() const { return caches(SIZE_MAX); }

  bool driver_part(stream_ref stream) { return api_.runtime_calls_of_a_pair(baseline_, stream.handle) == 0; }
  static constexpr bool counts_device_calls = false;
  static constexpr bool opened_anew = false;  // closing one takes seconds of driver calls to return its memory

 private:
  const gpumem_baseline_api& api_;
  gpumem_baseline* baseline_;
  std::string kind_;
  int ordinal_;
  std::vector<stream_ref> streams_;
};

/// The floor of a case: empty calls and the loop around them.
class empty_subject {
 public:
  [[gnu::noinline]] void* allocate(std::size_t bytes, stream_ref /*s*/) { return reinterpret_cast<void*>(bytes | 1); }
  [[gnu::noinline]] void release(void* block, stream_ref /*own*/) {
    asm volatile("" : : "r"(block));  // keeps the compiler from removing the call
  }
  [[nodiscard]] static stream_ref stream(std::size_t /*i*/) { return {}; }
  void enter_thread() {}
};

}  // namespace gpumem::bench
