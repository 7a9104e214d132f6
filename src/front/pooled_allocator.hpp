// gpumem's own allocator over its pools: checks requests, finds the pool, records the trace, refuses misuse.
//
// It needs no lock, because the list of pools is fixed at opening. The functions that `allocator` does not have serve
// the preload library, which replaces cudaMalloc and cudaFree.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "captures.hpp"
#include "checked_mutex.hpp"
#include "gpumem/allocator.hpp"
#include "logical_pool.hpp"
#include "written_file.hpp"

namespace gpumem {

class pooled_allocator final : public allocator {
 public:
  /// As `allocator::open`.
  static result<std::unique_ptr<pooled_allocator>> open(std::span<device* const> devices, const settings& options);
  pooled_allocator();
  ~pooled_allocator() override;
  pooled_allocator& operator=(pooled_allocator&&) = delete;

  status record_use(void* pointer, stream_ref stream) override;
  status stream_release(stream_ref stream) override;
  status capture_begin(stream_ref stream) override;
  result<graph_ref> capture_end(stream_ref stream) override;
  status captures_ended(int physical_device) override { return end_captures(physical_device, false); }
  status reported_captures_ended(int physical_device) override { return end_captures(physical_device, true); }
  status graph_release(graph_ref graph) override;
  result<std::uint64_t> open_region(int device, stream_ref stream) override;
  status close_region(int device, std::uint64_t region) override;
  result<trim_result> trim(int device, std::uint64_t bytes = UINT64_MAX) override;
  result<limit_result> set_limit(int device, std::uint64_t limit_bytes) override;
  void on_out_of_memory(oom_callback callback) override;
  [[nodiscard]] const std::vector<logical_device>& devices() const noexcept override { return devices_; }
  [[nodiscard]] result<statistics> stats(int device) const override;
  [[nodiscard]] result<block_info> describe(const void* pointer) const override;
  [[nodiscard]] status check(int device) const override;
  status flush_trace() override;
  [[nodiscard]] result<std::vector<segment_view>> segments(int device) const override;
  [[nodiscard]] result<piece_statistics> pieces(int device) const override;
  status reset_peak_reserved(int device) override;
  status enable_peer(int device, int physical_ordinal) override;
  status observe_segments(std::shared_ptr<segment_observer> observer) override;

  /// Makes the stream `all` represent all work on the devices: a fence on it is an event on the whole context. A block
  /// freed on `all` is reusable when all work enqueued before its fence is done. Each thread records a fence per 16
  /// such frees, or sooner, per 1 MiB. Call once, before the first allocation.
  status stand_for_all_work(stream_ref all);
  /// Frees a block behind all work, without a lock. On false nothing has changed, and the caller must call
  /// `try_deallocate` with the stream `all`: the block is not from this allocator, the thread has no cache, the block
  /// needs the lock, or streams are not announced (GPUMEM_STREAM_IDS=query). Any thread.
  [[nodiscard]] bool free_behind_all_work(void* pointer) noexcept;

  /// A capture on a stream that the caller cannot name, because it is another thread's default stream: until
  /// `end_held_capture` with the same number, the pools make no call that would invalidate a capture. Blocks allocated
  /// in the meantime belong to no graph.
  status hold_capture(std::uint64_t number);
  /// Does nothing if no capture with that number is held.
  void end_held_capture(std::uint64_t number) noexcept { captures_.end_hold(number); }

  /// First use under a policy that takes everything (`grab_all`): takes the memory of each such pool, as TensorFlow
  /// does, except that of device `used`, whose request opens it. Does nothing after the first call, which the first
  /// allocation makes. Logs memory that cannot be taken. Any thread; the caller must not hold a lock that an allocation
  /// takes.
  void preallocate(int used = -1);

  /// Calls `each` for each pool, until one fails.
  status for_each_pool(const std::function<status(const pool&)>& each) const;

 private:
  result<void*> do_allocate(const request& request, oom_slot* refusal) override;
  status do_deallocate(void* pointer, const free_args& stated) override;
  status start(std::span<device* const> devices, const settings& options);
  status end_captures(int physical_device, bool reported_only);
  status refuse_free_of_others(address begin, int stated);
  status set_limit_beside_others(const logical_pool& slot, std::uint64_t limit_bytes);
  [[nodiscard]] status write_stats(const std::string& target) const;
  void report() noexcept;
  status each_recorder(const std::function<status(allocation_recorder&, const pool&)>& does) const;

  /// The process that opened the allocator. A forked child writes no files of recorders and figures, and takes no lock,
  /// because the lock may be held by a thread that does not exist in the child.
  const pid_t process_ = ::getpid();
  std::vector<logical_pool> pools_;  // by logical ordinal
  std::vector<logical_device> devices_;
  captures captures_{pools_};
  checked_mutex limits_mutex_;
  std::atomic<std::uint64_t> foreign_misuses_{0};  // frees of pointers that no pool knows
  std::string stats_path_;
  bool oom_advice_ = false;
  std::optional<written_file> stats_file_;  // keeps other processes from the path
  std::atomic<bool> untouched_{false};      // true until the first allocation, if a pool takes everything
};

}  // namespace gpumem
