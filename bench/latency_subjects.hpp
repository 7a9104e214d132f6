/// What `latency` times: something that allocates and frees, from any thread.
///
/// The cases are templates over these types, so that no virtual call of the bench's own is part of a time.
#pragma once

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda_stage.hpp"
#include "gpumem/allocator.hpp"
#include "latency.hpp"
#include "measure.hpp"
#include "policy_row.hpp"

namespace gpumem::bench {

/// An allocator of gpumem on a device of its own (a simulated one), or on the GPU.
class gpumem_subject {
 public:
  static result<std::unique_ptr<gpumem_subject>> open(const policy_row& row, const replay_setup& setup,
                                                      cuda_stage* stage, std::size_t streams);

  /// By the calls that programs make. Null where it fails.
  void* allocate(std::size_t bytes, stream_ref s) {
    try {
      return over_->allocate(bytes, s);
    } catch (const std::exception&) {
      return nullptr;
    }
  }
  /// In the order of the block's own stream.
  void release(void* p, stream_ref /*own*/) { over_->deallocate(p); }
  /// A stream for the i-th thread.
  [[nodiscard]] stream_ref stream(std::size_t i) const { return streams_[i % streams_.size()]; }
  /// To be called first on every thread but the one that opened it.
  void enter_thread() {}
  /// Pairs in a repetition: about a millisecond.
  static constexpr std::size_t pair_turns = 80'000;
  /// Of those pairs on several threads, of walks and of batches from hand to hand.
  static constexpr int repetitions = latency_repetitions;
  /// Batches from hand to hand in one: some milliseconds, most of it with processors that have woken up.
  static constexpr std::size_t handoff_turns = 64;
  /// A block of that size costs no device call when it is asked for again.
  [[nodiscard]] static bool caches(std::size_t /*bytes*/) { return true; }
  [[nodiscard]] static bool caches_every_size() { return true; }

  /// The device calls that a pair of a cached block consists of (asking for the stream's id); false: it has none.
  bool driver_part(stream_ref s);
  /// Calls so far, those that every pair makes left out.
  static constexpr bool counts_device_calls = true;
  /// Each repetition of `worst` is on one that is new.
  static constexpr bool opened_anew = true;
  [[nodiscard]] std::uint64_t device_calls() const;

 private:
  std::unique_ptr<device> on_;
  sim_device* sim_ = nullptr;
  std::unique_ptr<allocator> over_;
  std::vector<stream_ref> streams_;
  std::optional<unsigned> asks_a_pair_;
};

/// A baseline of the plug-in.
class baseline_subject {
 public:
  static result<std::unique_ptr<baseline_subject>> open(const policy_row& row, const replay_setup& setup,
                                                        cuda_stage* stage, std::size_t streams);
  baseline_subject(cuda_stage& stage, gpumem_baseline* under, std::string kind, std::size_t streams);
  ~baseline_subject() { api_.close(under_); }
  baseline_subject(const baseline_subject&) = delete;
  baseline_subject& operator=(const baseline_subject&) = delete;

  void* allocate(std::size_t bytes, stream_ref s) {
    void* p = nullptr;
    return api_.allocate(under_, &p, bytes, s.handle) == 0 ? p : nullptr;
  }
  void release(void* p, stream_ref own) { api_.release(under_, p, own.handle); }
  [[nodiscard]] stream_ref stream(std::size_t i) const { return streams_[i % streams_.size()]; }
  void enter_thread() { api_.set_device(ordinal_); }
  static constexpr std::size_t pair_turns = 8000;
  static constexpr int repetitions = latency_long_repetitions;
  static constexpr std::size_t handoff_turns = 4;
  [[nodiscard]] bool caches(std::size_t bytes) const {
    return kind_ == "cub_default" ? bytes <= std::size_t{2} << 20 : kind_ != "cuda_malloc";
  }
  /// What does not goes to the device in a replay, and that is not what is timed here.
  [[nodiscard]] bool caches_every_size() const { return caches(SIZE_MAX); }

  bool driver_part(stream_ref s) { return api_.runtime_calls_of_a_pair(under_, s.handle) == 0; }
  static constexpr bool counts_device_calls = false;
  static constexpr bool opened_anew = false;  // what it holds is returned by driver calls, for seconds

 private:
  const gpumem_baseline_api& api_;
  gpumem_baseline* under_;
  std::string kind_;
  int ordinal_;
  std::vector<stream_ref> streams_;
};

/// The floor of a case: calls that do nothing, and the loop around them.
class empty_subject {
 public:
  [[gnu::noinline]] void* allocate(std::size_t bytes, stream_ref /*s*/) { return reinterpret_cast<void*>(bytes | 1); }
  [[gnu::noinline]] void release(void* p, stream_ref /*own*/) {
    asm volatile("" : : "r"(p));  // a call without an effect would be left out
  }
  [[nodiscard]] static stream_ref stream(std::size_t /*i*/) { return {}; }
  void enter_thread() {}
};

}  // namespace gpumem::bench
