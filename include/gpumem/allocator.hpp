/// The allocator: stream-ordered device memory from pools whose policy an environment variable chooses.
///
/// Every function may be called from any thread. A block belongs to the stream it was allocated for: freed, it
/// serves that stream again at once (stream order makes that safe) and another stream only behind a fence.
/// Logical devices are pools: one for each device, or as many as GPUMEM_POOLS names, numbered through.
/// Memory is taken at the first request, never at construction.
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

/// Thrown by `allocate` when the ladder of out_of_memory steps is exhausted. `what()` is the whole report.
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

/// The graph a capture was recorded into: its blocks stay its own until `graph_release`.
struct graph_ref {
  std::uint64_t id = 0;
  friend bool operator==(graph_ref, graph_ref) = default;
};

class GPUMEM_HIDDEN pooled_allocator;

/// What code that looks for GPUs is shown: a pool of its own memory on the GPU behind it.
struct logical_device {
  int ordinal = 0;
  int physical_ordinal = 0;
  std::string name;
  std::string policy;
  std::uint64_t limit_bytes = 0;  ///< when it was opened: the device's memory, as far as this program is concerned
  std::string gpu_name{};
  std::string gpu_uuid{};
  std::uint64_t gpu_total_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  bool simulated = false;
};

/// Misuse has one status in every function here and in gpumem.h. A device that does not exist is `wrong_device`; a null
/// pointer or one that is not a block's is `unknown_pointer` (freeing null is nothing); a stream that the device does
/// not know, such as one that was destroyed, is `device_error` where GPUMEM_STREAM_IDS is `query`.
class allocator {
 public:
  /// Over `devices` (not owned; they must outlive it). Checks everything that can be refused: policy, limits,
  /// pools. `bad_setting` names the variable, its value and what was expected.
  static result<std::unique_ptr<allocator>> open(std::span<device* const> devices, const settings& with);
  virtual ~allocator() = default;

  /// Throws `out_of_memory` or `bad_request`.
  void* allocate(const request& r) {
    void* const p = try_cache(r);
    return p != nullptr ? p : allocate_or_throw(r);
  }
  void* allocate(std::size_t bytes, stream_ref stream = {}, int device = 0) {
    return allocate(request{.bytes = bytes, .stream = stream, .device = device});
  }
  /// As `allocate`, but returns. With `out_of_memory` the report, where one is wanted, is stored in `report`.
  result<void*> try_allocate(const request& r, oom_report* report = nullptr) {
    if (void* const p = try_cache(r)) return p;
    return allocate_or_report(r, report);
  }

  /// Frees; a null pointer is nothing. Misuse is logged, counted in `statistics::misuses` and otherwise ignored.
  void deallocate(void* p, const release& stated = {}) noexcept {
    if (!free_to_cache(p, stated)) deallocate_or_log(p, stated);
  }
  /// The same, returning `unknown_pointer`, `double_free`, `wrong_size` or `wrong_device`; the block stays as it is.
  status try_deallocate(void* p, const release& stated = {}) {
    if (free_to_cache(p, stated)) return {};
    return do_deallocate(p, stated);
  }

  /// The block is also used by work on `s`: it is free only when that is done, too. `p` may be any address in it.
  virtual status record_use(void* p, stream_ref s) = 0;

  /// `s` is about to be destroyed: what it freed becomes free for others behind a fence on the whole context, and
  /// a later stream with the same handle inherits nothing.
  virtual status stream_release(stream_ref s) = 0;
  /// Between these, `s` captures: nothing is done that would spoil it, and what it allocates belongs to the graph.
  virtual status capture_begin(stream_ref s) = 0;
  virtual result<graph_ref> capture_end(stream_ref s) = 0;
  /// Where captures are noticed and not told: the program has ended one on this physical device. Each stream there that
  /// was noticed to capture must still exist: it is asked, and those captures that are over are ended here, too.
  virtual status captures_ended(int /*physical_device*/) { return {}; }
  /// The graph will not run again: its blocks become free for others behind a fence.
  virtual status graph_release(graph_ref g) = 0;
  /// A region for work on `s`, a number other than 0: what `request::region` asks for there is the region's, freed or
  /// not, and serves nobody else until `close_region`. Several captures of `s` that share a region reuse its memory.
  virtual result<std::uint64_t> open_region(int device, stream_ref s);
  /// No work uses the region's memory from here on but what was enqueued: it becomes free for others behind a fence,
  /// what is live in it with its free.
  virtual status close_region(int device, std::uint64_t region);

  /// Gives wholly idle segments back until `bytes` are returned; everything that can be by default.
  virtual result<trim_result> trim(int device, std::uint64_t bytes = UINT64_MAX) = 0;
  /// In force at once: nothing is taken beyond it from here on, and what can be given back is.
  virtual result<limit_result> set_limit(int device, std::uint64_t limit_bytes) = 0;
  virtual void on_out_of_memory(oom_callback callback) = 0;

  [[nodiscard]] virtual const std::vector<logical_device>& devices() const noexcept = 0;
  [[nodiscard]] virtual result<statistics> stats(int device) const = 0;
  /// The block that `p` points into.
  [[nodiscard]] virtual result<block_info> describe(const void* p) const = 0;
  /// Proves every invariant of one pool, conservation first; `corrupt` says what does not hold. Slow.
  [[nodiscard]] virtual status check(int device) const = 0;
  /// Writes out what GPUMEM_TRACE has recorded so far.
  virtual status flush_trace() = 0;
  /// Every segment and every block, by address. Slow.
  [[nodiscard]] virtual result<std::vector<segment_view>> segments(int device) const;
  /// The peak of reserved bytes begins anew, at what is reserved now.
  virtual status reset_peak_reserved(int device);
  /// The GPU with that ordinal of the driver's reaches this device's mapped memory, too; of other memory nothing is to
  /// be done here.
  virtual status enable_peer(int device, int physical_ordinal);

 protected:
  allocator() = default;
  /// What allocates and frees where no thread's cache serves: the whole of it, for an allocator that is not gpumem's.
  /// Says why in `refusal`, where one is given, if it answers `out_of_memory`.
  virtual result<void*> do_allocate(const request& r, oom_slot* refusal) = 0;
  virtual status do_deallocate(void* p, const release& stated) = 0;

 private:
  friend class pooled_allocator;
  /// A block from the calling thread's cache; null where that has none, and `do_allocate` is to be asked.
  void* try_cache(const request& r) noexcept {
    return r.alignment == block_granularity && r.region == 0 ? try_cache(r.bytes, r.stream, r.device) : nullptr;
  }
  void* try_cache(std::size_t bytes, stream_ref stream, int device) noexcept;
  /// True where the calling thread's cache took the block; else nothing changed, and `do_deallocate` is to be asked.
  bool free_to_cache(void* p, const release& stated) noexcept {
    return !stated.stream && !stated.bytes && !stated.device ? free_to_cache(p, nullptr) : free_to_cache(p, &stated);
  }
  bool free_to_cache(void* p, const release* stated) noexcept;
  void* allocate_or_throw(const request& r);
  result<void*> allocate_or_report(const request& r, oom_report* report);
  void deallocate_or_log(void* p, const release& stated) noexcept;

  std::uint64_t number_ =
      0;  // of gpumem's own allocators, by which a thread knows its caches: no virtual call on a hit
};

}  // namespace gpumem
