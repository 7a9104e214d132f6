/// The allocator: stream-ordered device memory from pools whose policy an environment variable chooses.
///
/// Every function may be called from any thread. A block belongs to the stream it was allocated for. After a free it
/// may serve that stream again at once, because stream order makes that safe, and another stream only behind a fence.
/// Each logical device is a pool: one per device, or those that GPUMEM_POOLS names, numbered consecutively.
/// An allocator takes memory at the first request, never at construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/export.h"
#include "gpumem/request.hpp"
#include "gpumem/segment_observer.hpp"
#include "gpumem/settings.hpp"
#include "gpumem/statistics.hpp"
#include "gpumem/status.hpp"

namespace GPUMEM_API gpumem {

/// Thrown by `allocate` for a request that can never succeed (0 bytes, a bad alignment, a wrong device).
class bad_request : public std::bad_alloc {
 public:
  explicit bad_request(status why) : why_{std::move(why)} {}
  [[nodiscard]] const char* what() const noexcept override { return why_.message().c_str(); }
  [[nodiscard]] const status& why() const noexcept { return why_; }

 private:
  status why_;
};

/// Thrown by `allocate` when every out-of-memory step has failed. `what()` is the whole report.
class out_of_memory : public std::bad_alloc {
 public:
  explicit out_of_memory(oom_report report)
      : report_{std::make_shared<const oom_report>(std::move(report))},
        text_{std::make_shared<const std::string>(report_->to_string())} {}
  [[nodiscard]] const char* what() const noexcept override { return text_->c_str(); }
  [[nodiscard]] const oom_report& report() const noexcept { return *report_; }

 private:
  std::shared_ptr<const oom_report> report_;
  std::shared_ptr<const std::string> text_;
};

/// The graph of a capture. It owns the blocks allocated in the capture until `graph_release`.
struct graph_ref {
  std::uint64_t id = 0;
  friend bool operator==(graph_ref, graph_ref) = default;
};

class GPUMEM_HIDDEN pooled_allocator;

/// A device as the program sees it: a pool with its own limit on a physical GPU.
struct logical_device {
  int ordinal = 0;
  int physical_ordinal = 0;
  std::string name;
  std::string policy;
  std::uint64_t limit_bytes = 0;  ///< at opening: the most memory that this device offers the program
  std::string gpu_name{};
  std::string gpu_uuid{};
  std::uint64_t gpu_total_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  bool simulated = false;
};

/// All functions here and in gpumem.h report misuse by the same status:
///
/// | misuse                                                                | status            |
/// |-----------------------------------------------------------------------|-------------------|
/// | a device that does not exist                                          | `wrong_device`    |
/// | a null pointer, or one outside every block (freeing null does nothing) | `unknown_pointer` |
/// | an unknown or destroyed stream, under GPUMEM_STREAM_IDS=query         | `device_error`    |
/// | the same in a free, if the block's pool knows the stream              | `ok`: no misuse   |
///
/// A pool knows the streams that it allocated for or freed on, until `stream_release`.
class allocator {
 public:
  /// Opens an allocator over `devices` (not owned; they must outlive it). Checks policy, limits and pools.
  /// `bad_setting` names the variable, its value and the expected values.
  static result<std::unique_ptr<allocator>> open(std::span<device* const> devices, const settings& options);
  virtual ~allocator() = default;

  /// Throws `out_of_memory` or `bad_request`.
  void* allocate(const request& request) {
    void* const p = try_cache(request);
    return p != nullptr ? p : allocate_or_throw(request);
  }
  void* allocate(std::size_t bytes, stream_ref stream = {}, int device = 0) {
    return allocate(request{.bytes = bytes, .stream = stream, .device = device});
  }
  /// As `allocate`, but returns errors. On `out_of_memory` stores the report in `report`, if not null.
  result<void*> try_allocate(const request& request, oom_report* report = nullptr) {
    if (void* const p = try_cache(request)) return p;
    return allocate_or_report(request, report);
  }
  /// As above, but makes the report only on `out_of_memory`; otherwise `refusal` is null afterwards. An allocation that
  /// succeeds constructs no report, which is cheaper.
  result<void*> try_allocate(const request& request, oom_slot& refusal) {
    refusal.reset();
    if (void* const p = try_cache(request)) return p;
    return do_allocate(request, &refusal);
  }

  /// Frees a block; does nothing for null. Logs misuse, counts it in `statistics::misuses` and otherwise ignores it.
  void deallocate(void* pointer, const free_args& stated = {}) noexcept {
    if (!free_to_cache(pointer, stated)) deallocate_or_log(pointer, stated);
  }
  /// The same, but returns misuse: `unknown_pointer`, `double_free`, `wrong_size` or `wrong_device`. Misuse does not
  /// change the block.
  status try_deallocate(void* pointer, const free_args& stated = {}) {
    if (free_to_cache(pointer, stated)) return {};
    return do_deallocate(pointer, stated);
  }

  /// States that work on `stream` also uses the block. After its free, the block is reusable only when that work is
  /// done. `pointer` may be any address in the block. `stream` must not be destroyed before the block is freed: the
  /// free records a fence on it.
  virtual status record_use(void* pointer, stream_ref stream) = 0;

  /// States that `stream` is about to be destroyed. Blocks that it freed become free for others behind a fence on the
  /// whole context, and a later stream with the same handle inherits nothing.
  virtual status stream_release(stream_ref stream) = 0;
  /// Call these around a capture of `stream`. In between, gpumem makes no call that would invalidate the capture, and
  /// the graph owns the blocks that `stream` allocates.
  virtual status capture_begin(stream_ref stream) = 0;
  virtual result<graph_ref> capture_end(stream_ref stream) = 0;
  /// For captures that gpumem noticed by itself: states that one on this physical device has ended. Queries the streams
  /// that were noticed to capture on the device, and ends the captures that are over. The streams must still exist, but
  /// for a blocking stream with the only capture at that time. `wrong_device` if no pool is on that device.
  virtual status captures_ended(int /*physical_device*/) { return {}; }
  /// The same, but only for captures that were noticed at a request with `reports_capture_end`. For a caller that does
  /// not know whether other parts of the program have destroyed their streams.
  virtual status reported_captures_ended(int /*physical_device*/) { return {}; }
  /// States that the graph will not run again. Its blocks become free for others behind a fence.
  virtual status graph_release(graph_ref graph) = 0;
  /// Opens a region for work on `stream` and returns its number, which is not 0. Memory allocated with
  /// `request::region` stays in the region after its free and serves no other request until `close_region`. Captures of
  /// `stream` that share a region reuse its memory.
  virtual result<std::uint64_t> open_region(int device, stream_ref stream);
  /// States that no new work will use the region. Its free memory becomes free for others behind a fence; live blocks
  /// do when they are freed.
  virtual status close_region(int device, std::uint64_t region);

  /// Returns wholly idle segments to the device until `bytes` are returned; by default all of them.
  virtual result<trim_result> trim(int device, std::uint64_t bytes = UINT64_MAX) = 0;
  /// Sets the limit at once: the pool takes no memory beyond it, and returns as much of an excess as it can.
  virtual result<limit_result> set_limit(int device, std::uint64_t limit_bytes) = 0;
  /// Adds a callback, called without a lock before the pool refuses a request. An exception counts as false and is
  /// logged; an empty callback is ignored.
  virtual void on_out_of_memory(oom_callback callback) = 0;

  [[nodiscard]] virtual const std::vector<logical_device>& devices() const noexcept = 0;
  [[nodiscard]] virtual result<statistics> stats(int device) const = 0;
  /// The block that `pointer` points into.
  [[nodiscard]] virtual result<block_info> describe(const void* pointer) const = 0;
  /// Verifies every invariant of one pool; `corrupt` names the violated one. Slow.
  [[nodiscard]] virtual status check(int device) const = 0;
  /// Writes the recorded part of GPUMEM_TRACE to its file.
  virtual status flush_trace() = 0;
  /// Lists every segment and every block, by address. Slow.
  [[nodiscard]] virtual result<std::vector<segment_view>> segments(int device) const;
  /// Returns figures of the device's segments, at a cost that does not depend on the number of blocks.
  [[nodiscard]] virtual result<piece_statistics> pieces(int device) const;
  /// Resets the peak of reserved bytes to the current value.
  virtual status reset_peak_reserved(int device);
  /// Gives the GPU with this driver ordinal access to this device's mapped memory. Plain memory needs no such call.
  virtual status enable_peer(int device, int physical_ordinal);
  /// Adds an observer of the segments of every device, for the allocator's life. It is notified when memory is added or
  /// removed from now on, but not when the allocator closes; `segments` lists the memory added before.
  virtual status observe_segments(std::shared_ptr<segment_observer> observer);

 protected:
  allocator() = default;
  /// Called if the thread's cache does not serve an allocation or free. Allocators other than gpumem's have no cache,
  /// so these serve every call. On `out_of_memory` stores the report in `refusal`, if not null.
  virtual result<void*> do_allocate(const request& request, oom_slot* refusal) = 0;
  virtual status do_deallocate(void* pointer, const free_args& stated) = 0;

 private:
  friend class pooled_allocator;
  /// Returns a block from the calling thread's cache, or null if the caller must call `do_allocate`.
  void* try_cache(const request& request) noexcept {
    return request.alignment == block_granularity && request.region == 0
               ? try_cache(request.bytes, request.stream, request.device)
               : nullptr;
  }
  void* try_cache(std::size_t bytes, stream_ref stream, int device) noexcept;
  /// True if the calling thread's cache took the block. Otherwise nothing changed, and the caller must call
  /// `do_deallocate`.
  bool free_to_cache(void* pointer, const free_args& stated) noexcept {
    return !stated.stream && !stated.bytes && !stated.device ? free_to_cache(pointer, nullptr)
                                                             : free_to_cache(pointer, &stated);
  }
  bool free_to_cache(void* pointer, const free_args* stated) noexcept;
  void* allocate_or_throw(const request& request);
  result<void*> allocate_or_report(const request& request, oom_report* report);
  void deallocate_or_log(void* pointer, const free_args& stated) noexcept;

  // Identifies gpumem's own allocators to the threads' caches, so that a hit makes no virtual call.
  std::uint64_t number_ = 0;
};

}  // namespace gpumem
