// Memory of a MemPool with its own allocator (ncclMemAlloc, managed memory): segments from that allocator, cut into
// blocks.
//
// If other streams than its segment's used a block, its free waits for an event on each of them. All driver calls are
// made in relaxed capture mode, so that none invalidates another stream's capture.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "own_blocks.hpp"
#include "stream_fences.hpp"

/// Allocates and frees whole segments. Called without a lock.
class segment_supplier {
 public:
  segment_supplier() = default;
  segment_supplier(const segment_supplier&) = delete;
  segment_supplier& operator=(const segment_supplier&) = delete;
  virtual ~segment_supplier() = default;
  /// Reserves bytes of the GPU's limit; false if they do not fit.
  virtual bool reserve(std::size_t bytes) = 0;
  virtual void release(std::size_t bytes) noexcept = 0;
  virtual void* allocate_segment(std::size_t bytes, cudaStream_t stream) = 0;
  virtual void free_segment(void* ptr) = 0;
  /// `came` is called after a segment is allocated, `going` before one is freed.
  virtual void came(void* ptr, std::size_t bytes, cudaStream_t stream) = 0;
  virtual void going(void* ptr, std::size_t bytes, cudaStream_t stream) = 0;
};

class own_memory final : public memory_source {
  using guard = std::lock_guard<std::mutex>;
  using state = gpumem::block_view::state;

 public:
  own_memory(int device, std::unique_ptr<segment_supplier> supplier, stream_calls& calls = runtime_calls())
      : device_{device}, supplier_{std::move(supplier)}, calls_{calls} {}

  void* allocate_block(const memory_request& asked, refusal& why) override {
    if (asked.place != 0) throw std::invalid_argument{"a MemPool with an allocator of its own gives no exact address"};
    if (void* const ptr = take_idle(asked); ptr != nullptr) return ptr;
    const std::size_t bytes = own_blocks::rounded(asked.bytes);
    const std::size_t whole = own_blocks::segment_bytes(bytes);
    if (!supplier_->reserve(whole)) return nullptr;
    char* begin = nullptr;
    try {
      begin = static_cast<char*>(supplier_->allocate_segment(whole, asked.stream));
      why.allocator_refused = begin == nullptr;
      if (begin != nullptr) add(begin, whole, bytes, asked);
    } catch (...) {
      if (begin != nullptr) supplier_->free_segment(begin);
      supplier_->release(whole);
      throw;
    }
    if (begin == nullptr) {
      supplier_->release(whole);
      return nullptr;
    }
    try {
      supplier_->came(begin, whole, asked.stream);
    } catch (...) {
      free_block(begin);
      throw;
    }
    return begin;
  }

  void* take_idle(const memory_request& asked) override {
    const guard lock{mutex_};
    settle();
    return blocks_.carve(asked);
  }

  void free_block(void* ptr) noexcept override {
    const guard lock{mutex_};
    const own_blocks::place freed = blocks_.find(ptr);
    if (freed.owner == nullptr || freed.block().block_state != state::live) return;
    freed.block().pending = freed.block().uses.size();
    if (freed.block().pending == 0) return blocks_.free(freed);
    blocks_.fence(freed);
    fences_.wait_for(&freed.block().uses);
  }

  void record_use(void* ptr, device_stream user) override {
    const guard lock{mutex_};
    const own_blocks::place used = blocks_.find(ptr);
    if (used.owner == nullptr || user == device_stream{device_, used.owner->stream}) return;
    fences_.add_use(&used.block().uses, ptr, user);
  }

  segment_range segment_around(const void* ptr) const override {
    const guard lock{mutex_};
    const segment_range found = blocks_.segment_around(ptr);
    if (found.bytes == 0) throw std::invalid_argument{"the address lies in no segment of the MemPool"};
    return found;
  }
  void describe(memory_map& map, const pool_id& pool) const override {
    const guard lock{mutex_};
    blocks_.describe(map, pool);
  }
  void count(memory_totals& totals, const pool_id& pool) const override {
    const guard lock{mutex_};
    blocks_.count(totals, pool);
  }

  bool give_back() override {
    if (is_empty() || !calls_.synchronize(device_)) return false;
    own_blocks::segment_map idle;
    {
      const guard lock{mutex_};
      fences_.finish(device_, [this](void* block) { end_use(block); });
      settle();
      idle = blocks_.take_whole();
    }
    if (idle.empty()) return false;
    if (!calls_.synchronize(device_)) {  // another thread may have used and freed a block meanwhile
      const guard lock{mutex_};
      blocks_.put_back(std::move(idle));
      return false;
    }
    std::exception_ptr failed;
    for (const auto& [begin, each] : idle) {
      try {
        supplier_->going(begin, each.bytes, each.stream);
        supplier_->free_segment(begin);
      } catch (...) {
        failed = std::current_exception();
      }
      bytes_ -= each.bytes;
      supplier_->release(each.bytes);
    }
    if (failed) std::rethrow_exception(failed);
    return true;
  }

  /// Idle segments stay until `give_back`: waiting for the GPU here could invalidate a capture.
  void close() override {}
  [[nodiscard]] bool is_empty() const noexcept override { return bytes_ == 0; }

 private:
  void add(char* begin, std::size_t whole, std::size_t bytes, const memory_request& asked) {
    const guard lock{mutex_};
    blocks_.add(begin, whole, bytes, asked);
    bytes_ += whole;
  }
  // --- with the lock ------------------------------------------------------------------------------------------
  /// Frees blocks whose streams are done with them.
  void settle() noexcept {
    fences_.settle([this](void* block) { end_use(block); });
  }
  void end_use(void* block) noexcept {
    const own_blocks::place waiting = blocks_.find(block);
    if (--waiting.block().pending == 0) blocks_.free(waiting);
  }

  const int device_;
  const std::unique_ptr<segment_supplier> supplier_;
  stream_calls& calls_;
  mutable std::mutex mutex_;  // guards the next two
  own_blocks blocks_;
  stream_fences fences_{calls_};
  std::atomic<std::size_t> bytes_ = 0;  // with segments that are being returned
};
