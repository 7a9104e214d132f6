/// The allocator: stream-ordered device memory from pools whose policy an environment variable chooses.
///
/// Every function may be called from any thread. A block belongs to the stream it was allocated for: freed, it
/// serves that stream again at once (stream order makes that safe) and another stream only behind a fence.
/// Logical devices are pools: one for each device, or as many as GPUMEM_POOLS names, numbered through.
/// Memory is taken at the first request, never at construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/settings.hpp"
#include "gpumem/statistics.hpp"
#include "gpumem/status.hpp"

namespace gpumem {

/// Every block starts at a multiple of this and is a multiple of it long.
inline constexpr std::size_t block_granularity = 512;

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

struct request {
  std::size_t bytes = 0;
  stream_ref stream{};
  int device = 0;                             ///< logical ordinal
  std::size_t alignment = block_granularity;  ///< a power of two
};

/// What a free may state, to be checked against the block.
struct release {
  std::optional<stream_ref> stream{};  ///< in whose order the block is free; by default its own
  std::optional<std::size_t> bytes{};  ///< as requested
  std::optional<int> device{};
};

/// The graph a capture was recorded into: its blocks stay its own until `graph_release`.
struct graph_ref {
  std::uint64_t id = 0;
  friend bool operator==(graph_ref, graph_ref) = default;
};

struct trim_result {
  std::uint64_t returned_bytes = 0;
  std::uint64_t in_use_bytes = 0;   ///< free bytes that stay: in segments with live blocks beside them
  std::uint64_t pending_bytes = 0;  ///< free bytes whose fences could not be waited for (a capture is running)
  std::uint64_t kept_bytes = 0;     ///< wholly idle, but the policy keeps it (grab_all)
};

struct limit_result {
  std::uint64_t limit_bytes = 0;     ///< now in force: nothing is taken beyond it
  std::uint64_t reserved_bytes = 0;  ///< still held
  std::uint64_t over_bytes = 0;      ///< what could not be given back: reserved beyond the limit
  std::uint64_t live_bytes = 0;      ///< of `reserved_bytes`, in use by the program
  trim_result trimmed;               ///< why the rest stayed
  [[nodiscard]] std::string to_string() const;
};

struct logical_device {
  int ordinal = 0;
  int physical_ordinal = 0;
  std::string name;
  std::string policy;
  std::uint64_t limit_bytes = 0;
};

struct block_info {
  address begin = 0;
  std::uint64_t bytes = 0;            ///< the block, a multiple of 512
  std::uint64_t requested_bytes = 0;
  address segment_begin = 0;
  std::uint64_t segment_bytes = 0;
  int device = 0;
};

/// Called when a request fails and nothing gpumem holds can help: frees what it can (through any allocator)
/// and returns true to have the request tried again. Called without a lock held.
using oom_callback = std::function<bool(int device, std::uint64_t needed_bytes)>;

class allocator {
 public:
  /// Over `devices` (not owned; they must outlive it). Checks everything that can be refused: policy, limits,
  /// pools. `bad_setting` names the variable, its value and what was expected.
  static result<std::unique_ptr<allocator>> open(std::span<device* const> devices, const settings& with);
  virtual ~allocator() = default;

  /// Throws `out_of_memory` or `bad_request`.
  void* allocate(const request& r);
  void* allocate(std::size_t bytes, stream_ref stream = {}, int device = 0) {
    return allocate(request{.bytes = bytes, .stream = stream, .device = device});
  }
  /// As `allocate`, but returns. With `out_of_memory` the report, where one is wanted, is stored in `report`.
  virtual result<void*> try_allocate(const request& r, oom_report* report = nullptr) = 0;

  /// Frees; a null pointer is nothing. Misuse is logged, counted in `statistics::misuses` and otherwise ignored.
  void deallocate(void* p, const release& stated = {}) noexcept;
  /// The same, returning `unknown_pointer`, `double_free`, `wrong_size` or `wrong_device`; the block stays as it is.
  virtual status try_deallocate(void* p, const release& stated = {}) = 0;

  /// The block is also used by work on `s`: it is free only when that is done, too. `p` may be any address in it.
  virtual status record_use(void* p, stream_ref s) = 0;

  /// `s` is about to be destroyed: what it freed becomes free for others behind a fence on the whole context, and
  /// a later stream with the same handle inherits nothing.
  virtual status stream_release(stream_ref s) = 0;
  /// Between these, `s` captures: nothing is done that would spoil it, and what it allocates belongs to the graph.
  virtual status capture_begin(stream_ref s) = 0;
  virtual result<graph_ref> capture_end(stream_ref s) = 0;
  /// The graph will not run again: its blocks become free for others behind a fence.
  virtual status graph_release(graph_ref g) = 0;

  /// Gives wholly idle segments back until `bytes` are returned; everything that can be by default.
  virtual trim_result trim(int device, std::uint64_t bytes = UINT64_MAX) = 0;
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

 protected:
  allocator() = default;
};

}  // namespace gpumem
