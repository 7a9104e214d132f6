// gpumem's segments on one GPU, as the segment observer reports them: their order and the request behind each. Also the
// current request, which the observer finds by the thread. This file does not include torch.
#pragma once

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "memory_source.hpp"

namespace c10 {
struct GatheredContext;
}
using context_ptr = std::shared_ptr<c10::GatheredContext>;

/// The request or call that adds or removes segments in this thread, for the lifetime of the object.
class segment_cause {
 public:
  segment_cause(const pool_id& pool_asked, cudaStream_t stream_asked, context_ptr asked_in)
      : pool{pool_asked}, stream{stream_asked}, context{std::move(asked_in)}, outer_{std::exchange(current_, this)} {}
  segment_cause(const segment_cause&) = delete;
  segment_cause& operator=(const segment_cause&) = delete;
  ~segment_cause() { current_ = outer_; }

  /// Null if this thread serves no request.
  static segment_cause* current() noexcept { return current_; }
  /// Keeps a tracker's first exception, because it cannot leave the observer.
  void fail(std::exception_ptr why) noexcept {
    if (!failed_) failed_ = std::move(why);
  }
  void rethrow() {
    if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
  }

  const pool_id pool;
  const cudaStream_t stream;
  const context_ptr context;

 private:
  inline static thread_local segment_cause* current_ = nullptr;
  segment_cause* const outer_;
  std::exception_ptr failed_;
};

class segment_table {
  using guard = std::lock_guard<std::mutex>;

 public:
  struct entry {
    std::size_t end = 0;
    std::uint64_t number = 0;  ///< in the order of allocation
    pool_id pool = no_pool;    ///< pool, stream and context are the request's
    cudaStream_t stream = nullptr;
    context_ptr context{};
  };
  using map = std::map<std::size_t, entry>;  // by first address; disjoint

  void add(std::size_t begin, std::size_t bytes, const segment_cause* cause) {
    entry made{.end = begin + bytes};
    if (cause != nullptr) {
      made.pool = cause->pool;
      made.stream = cause->stream;
      made.context = cause->context;
    }
    const guard lock{mutex_};
    made.number = ++numbers_;
    entries_.insert_or_assign(begin, std::move(made));
  }
  /// Removes the range from the table and returns the removed entries, clipped to it.
  std::vector<map::value_type> remove(std::size_t begin, std::size_t bytes) {
    const std::size_t end = begin + bytes;
    std::vector<map::value_type> removed;
    const guard lock{mutex_};
    auto position = entries_.upper_bound(begin);
    if (position != entries_.begin() && std::prev(position)->second.end > begin) --position;
    while (position != entries_.end() && position->first < end) {
      const auto [first, found] = *position;
      position = entries_.erase(position);
      entry going = found;
      if (first < begin) entries_.emplace(first, found).first->second.end = begin;
      if (found.end > end) {
        entries_.emplace(end, found);
        going.end = end;
      }
      removed.emplace_back(std::max(first, begin), std::move(going));
    }
    return removed;
  }
  [[nodiscard]] map entries() const {
    const guard lock{mutex_};
    return entries_;
  }
  /// Returns the entry that contains the address; null if there is none.
  static const entry* around(const map& entries, std::size_t address) {
    const auto next = entries.upper_bound(address);
    if (next == entries.begin()) return nullptr;
    const entry& found = std::prev(next)->second;
    return address < found.end ? &found : nullptr;
  }

 private:
  mutable std::mutex mutex_;
  map entries_;
  std::uint64_t numbers_ = 0;
};
