// Memory of a MemPool with its own allocator (ncclMemAlloc, managed memory): segments from that allocator, cut into
// blocks.
//
// A block serves the stream that its segment was allocated for. If other streams used it too, its free waits for an
// event on each of them. No event can be recorded on a stream that captures: the use then stays pending without one,
// and a later request records it. All driver calls are made in relaxed capture mode, so that none invalidates another
// stream's capture.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "memory_source.hpp"

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

/// In its scope, no call of this thread invalidates a capture, unless the call names a capturing stream.
class relaxed_capture_mode {
 public:
  relaxed_capture_mode() noexcept { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  relaxed_capture_mode(const relaxed_capture_mode&) = delete;
  relaxed_capture_mode& operator=(const relaxed_capture_mode&) = delete;
  ~relaxed_capture_mode() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// Makes a GPU current for a scope, if it can. Requires that it has a context.
class current_gpu {
 public:
  explicit current_gpu(int device) noexcept {
    if (cudaGetDevice(&previous_) != cudaSuccess || previous_ == device) return;
    changed_ = cudaSetDevice(device) == cudaSuccess;
  }
  current_gpu(const current_gpu&) = delete;
  current_gpu& operator=(const current_gpu&) = delete;
  ~current_gpu() {
    if (changed_) static_cast<void>(cudaSetDevice(previous_));
  }

 private:
  int previous_ = 0;
  bool changed_ = false;
};

/// Also false if the stream's state cannot be queried: the legacy stream beside a capture, a destroyed stream.
inline bool captures_nothing(const device_stream& stream) noexcept {
  const current_gpu current{stream.device};
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream.handle, &status) == cudaSuccess) return status == cudaStreamCaptureStatusNone;
  static_cast<void>(cudaGetLastError());
  return false;
}

class own_memory final : public memory_source {
  using guard = std::lock_guard<std::mutex>;
  using state = gpumem::block_view::state;

  struct stream_queue;
  /// A stream's use of a block. Allocated when the use is recorded, so that a free needs no host memory.
  struct stream_use {
    stream_queue* queue = nullptr;
    void* block = nullptr;
    cudaEvent_t done = nullptr;  // null: not recorded, because the stream captured
  };
  /// Uses of freed blocks on one stream, in the order of the frees: an event covers all uses before it.
  struct stream_queue {
    device_stream stream;
    std::list<stream_use> freed;
  };
  using free_key = std::tuple<cudaStream_t, std::size_t, char*>;
  using free_set = std::set<free_key>;
  struct piece {
    std::size_t bytes = 0;
    std::size_t requested = 0;
    state block_state = state::cached;
    std::list<stream_use> uses{};
    std::size_t pending = 0;           // uses in the queues
    free_set::node_type index_node{};  // node for `free_` while the piece is not free, so that a free needs no host
                                       // memory
  };
  struct segment {
    std::size_t bytes = 0;
    cudaStream_t stream = nullptr;
    std::uint64_t number = 0;
    std::map<char*, piece> pieces{};  // by address, without gaps
  };
  using piece_place = std::pair<segment*, std::map<char*, piece>::iterator>;

 public:
  static std::size_t rounded(std::size_t bytes) {
    return (bytes + gpumem::block_granularity - 1) / gpumem::block_granularity * gpumem::block_granularity;
  }
  /// A segment holds many small blocks, or one large block: MemPool allocators are slow and round up to pages.
  static std::size_t segment_bytes(std::size_t block) {
    constexpr std::size_t page = std::size_t{2} << 20;
    if (block <= page / 2) return page;
    if (block < 5 * page) return 10 * page;
    return (block + page - 1) / page * page;
  }

  own_memory(int device, std::unique_ptr<segment_supplier> supplier)
      : device_{device}, supplier_{std::move(supplier)} {}
  ~own_memory() override {
    const relaxed_capture_mode relaxed;
    for (const auto& [unused, queue] : queues_) {
      for (const stream_use& each : queue.freed) {
        if (each.done != nullptr) static_cast<void>(cudaEventDestroy(each.done));
      }
    }
  }

  void* allocate_block(const memory_request& asked, refusal& why) override {
    if (asked.place != 0) throw std::invalid_argument{"a MemPool with an allocator of its own gives no exact address"};
    if (void* const ptr = take_idle(asked); ptr != nullptr) return ptr;
    const std::size_t bytes = rounded(asked.bytes);
    const std::size_t whole = segment_bytes(bytes);
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
    return carve(rounded(asked.bytes), asked);
  }

  void free_block(void* ptr) noexcept override {
    const guard lock{mutex_};
    const auto [owner, found] = find(ptr);
    if (owner == nullptr || found->second.block_state != state::live) return;
    piece& block = found->second;
    block.pending = block.uses.size();
    if (block.pending == 0) return free(*owner, found);
    block.block_state = state::fenced;
    ++changes_;
    while (!block.uses.empty()) {
      std::list<stream_use>& queue = block.uses.front().queue->freed;
      queue.splice(queue.end(), block.uses, block.uses.begin());
      static_cast<void>(record(queue.back()));
    }
  }

  void record_use(void* ptr, device_stream user) override {
    const guard lock{mutex_};
    const auto [owner, found] = find(ptr);
    if (owner == nullptr || user == device_stream{device_, owner->stream}) return;
    std::list<stream_use>& uses = found->second.uses;
    stream_queue& queue = queues_.try_emplace(user, stream_queue{user, {}}).first->second;
    if (std::ranges::any_of(uses, [&](const stream_use& each) { return each.queue == &queue; })) return;
    uses.push_back({&queue, ptr, nullptr});
  }

  segment_range segment_around(const void* ptr) const override {
    const guard lock{mutex_};
    auto next = segments_.upper_bound(static_cast<char*>(const_cast<void*>(ptr)));
    if (next == segments_.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= ptr) {
      throw std::invalid_argument{"the address lies in no segment of the MemPool"};
    }
    --next;
    return {next->first, next->second.bytes};
  }

  void describe(memory_map& map, const pool_id& pool) const override {
    const guard lock{mutex_};
    for (const auto& [begin, each] : segments_) {
      memory_map::own_segment& made = map.own.emplace_back();
      made.pool = pool;
      made.number = each.number;
      made.view.begin = reinterpret_cast<gpumem::address>(begin);
      made.view.bytes = each.bytes;
      for (const auto& [at, block] : each.pieces) {
        made.view.blocks.push_back({.begin = reinterpret_cast<gpumem::address>(at),
                                    .bytes = block.bytes,
                                    .requested_bytes = block.block_state == state::live ? block.requested : 0,
                                    .stream = {each.stream},
                                    .is = block.block_state});
      }
    }
  }

  [[nodiscard]] std::uint64_t changes() const noexcept override { return changes_; }

  bool give_back() override {
    if (is_empty() || !synchronize()) return false;
    std::map<char*, segment> idle;
    {
      const guard lock{mutex_};
      finish_queues();
      ++changes_;
      for (auto each = segments_.begin(); each != segments_.end();) {
        const auto next = std::next(each);
        const auto first = each->second.pieces.begin();
        if (each->second.pieces.size() == 1 && first->second.block_state == state::cached) {
          first->second.index_node = free_.extract(key_of(each->second, first));
          idle.insert(segments_.extract(each));
        }
        each = next;
      }
    }
    if (idle.empty()) return false;
    if (!synchronize()) {  // another thread may have used and freed a block meanwhile
      const guard lock{mutex_};
      for (auto& [begin, each] : idle) free_.insert(std::move(each.pieces.begin()->second.index_node));
      segments_.merge(idle);
      ++changes_;
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
  static free_key key_of(const segment& owner, std::map<char*, piece>::const_iterator position) {
    return {owner.stream, position->second.bytes, position->first};
  }
  static free_set::node_type new_node() {
    free_set nodes{free_key{}};
    return nodes.extract(nodes.begin());
  }

  bool synchronize() const noexcept {
    const relaxed_capture_mode relaxed;
    const current_gpu current{device_};
    if (cudaDeviceSynchronize() == cudaSuccess) return true;
    static_cast<void>(cudaGetLastError());
    return false;
  }

  // --- with the lock ------------------------------------------------------------------------------------------
  piece_place find(void* ptr) {
    auto owner = segments_.upper_bound(static_cast<char*>(ptr));
    if (owner == segments_.begin()) return {nullptr, {}};
    --owner;
    const auto found = owner->second.pieces.find(static_cast<char*>(ptr));
    if (found == owner->second.pieces.end()) return {nullptr, {}};
    return {&owner->second, found};
  }

  /// Adds a segment whose first bytes are a live block.
  void add(char* begin, std::size_t whole, std::size_t bytes, const memory_request& asked) {
    segment made{whole, asked.stream, ++numbers_, {}};
    piece& block = made.pieces.emplace(begin, piece{bytes, asked.bytes, state::live}).first->second;
    block.index_node = new_node();
    free_set rest;
    if (whole > bytes) {
      made.pieces.emplace(begin + bytes, piece{whole - bytes});
      rest.emplace(asked.stream, whole - bytes, begin + bytes);
    }
    const guard lock{mutex_};
    segments_.emplace(begin, std::move(made));
    free_.merge(rest);
    bytes_ += whole;
    ++changes_;
  }

  /// Takes the stream's smallest free piece that fits; null if there is none.
  void* carve(std::size_t bytes, const memory_request& asked) {
    const auto best = free_.lower_bound({asked.stream, bytes, nullptr});
    if (best == free_.end() || std::get<0>(*best) != asked.stream) return nullptr;
    char* const begin = std::get<2>(*best);
    const auto [owner, found] = find(begin);
    piece& block = found->second;
    if (const std::size_t rest = block.bytes - bytes; rest != 0) {
      free_set::node_type spare = new_node();
      owner->pieces.emplace(begin + bytes, piece{rest});
      block.index_node = free_.extract(best);
      spare.value() = {owner->stream, rest, begin + bytes};
      free_.insert(std::move(spare));
    } else {
      block.index_node = free_.extract(best);
    }
    ++changes_;
    block.bytes = bytes;
    block.requested = asked.bytes;
    block.block_state = state::live;
    return begin;
  }

  /// Merges the piece with its free neighbours.
  void free(segment& owner, std::map<char*, piece>::iterator position) noexcept {
    free_set::node_type node = std::move(position->second.index_node);
    position->second.block_state = state::cached;
    ++changes_;
    if (const auto next = std::next(position);
        next != owner.pieces.end() && next->second.block_state == state::cached) {
      free_.erase(key_of(owner, next));
      position->second.bytes += next->second.bytes;
      owner.pieces.erase(next);
    }
    if (position != owner.pieces.begin()) {
      if (const auto before = std::prev(position); before->second.block_state == state::cached) {
        free_.erase(key_of(owner, before));
        before->second.bytes += position->second.bytes;
        owner.pieces.erase(position);
        position = before;
      }
    }
    node.value() = key_of(owner, position);
    free_.insert(std::move(node));
  }

  // --- events -------------------------------------------------------------------------------------------------
  static bool record(stream_use& use) noexcept {
    const relaxed_capture_mode relaxed;
    if (!captures_nothing(use.queue->stream)) return false;
    const current_gpu current{use.queue->stream.device};
    if (cudaEventCreateWithFlags(&use.done, cudaEventDisableTiming) == cudaSuccess) {
      if (cudaEventRecord(use.done, use.queue->stream.handle) == cudaSuccess) return true;
      static_cast<void>(cudaEventDestroy(std::exchange(use.done, nullptr)));
    }
    use.done = nullptr;
    static_cast<void>(cudaGetLastError());
    return false;
  }
  /// Frees blocks whose streams are done with them. Does not query events of streams that capture.
  void settle() noexcept {
    const relaxed_capture_mode relaxed;
    for (auto& [stream, queue] : queues_) {
      std::list<stream_use>& freed = queue.freed;
      if (freed.empty() || !captures_nothing(stream)) continue;
      while (!freed.empty()) {
        auto event = std::ranges::find_if(freed, [](const stream_use& each) { return each.done != nullptr; });
        if (event == freed.end()) {
          event = std::prev(freed.end());
          if (!record(*event)) break;
        }
        if (cudaEventQuery(event->done) != cudaSuccess) {
          static_cast<void>(cudaGetLastError());
          break;
        }
        ++event;
        while (freed.begin() != event) finish(freed);
      }
    }
  }
  /// Frees all blocks that wait for this GPU. Requires that the host waited for the GPU.
  void finish_queues() noexcept {
    for (auto& [stream, queue] : queues_) {
      while (stream.device == device_ && !queue.freed.empty()) finish(queue.freed);
    }
    settle();
  }
  void finish(std::list<stream_use>& freed) noexcept {
    const stream_use use = freed.front();
    freed.pop_front();
    if (use.done != nullptr) static_cast<void>(cudaEventDestroy(use.done));
    const auto [owner, found] = find(use.block);
    if (--found->second.pending == 0) free(*owner, found);
  }

  const int device_;
  const std::unique_ptr<segment_supplier> supplier_;
  mutable std::mutex mutex_;  // guards all members below
  std::map<char*, segment> segments_;
  free_set free_;
  std::map<device_stream, stream_queue> queues_;
  std::uint64_t numbers_ = 0;
  std::atomic<std::size_t> bytes_ = 0;
  std::atomic<std::uint64_t> changes_ = 0;
};
