// Memory of a MemPool that brings its own allocator (ncclMemAlloc, managed memory): segments taken from that one, cut
// into blocks. A block serves the stream that its segment was taken for; what was used on other streams, too, waits for
// them. The lock of torch_allocator guards it, but for `take_segment` and `give_segment`, which call the pool's
// allocator.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

class own_memory {
  struct piece {
    std::size_t bytes = 0;
    bool free = true;
  };

 public:
  struct segment {
    std::size_t bytes = 0;
    cudaStream_t stream = nullptr;
    std::map<std::size_t, piece> pieces;  // by where they begin, from 0 to `bytes` without a gap
  };

  explicit own_memory(std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> from) : from_{std::move(from)} {}
  own_memory(const own_memory&) = delete;
  own_memory& operator=(const own_memory&) = delete;

  /// One that holds many small blocks, or a block alone: such allocators are slow and round up to pages themselves.
  static std::size_t segment_bytes(std::size_t block) {
    constexpr std::size_t page = std::size_t{2} << 20;
    if (block <= page / 2) return page;
    if (block < 5 * page) return 10 * page;
    return (block + page - 1) / page * page;
  }
  void* take_segment(std::size_t bytes, cudaStream_t stream) const {
    return from_->raw_alloc_with_stream(bytes, stream);
  }
  void give_segment(void* at) const { from_->raw_delete(at); }

  void add(void* at, std::size_t bytes, cudaStream_t stream) {
    segment& s = segments_[static_cast<char*>(at)];
    s = {bytes, stream, {{0, {bytes, true}}}};
    bytes_ += bytes;
  }
  /// The smallest free piece of that stream's that holds `bytes`; null where there is none.
  void* take(std::size_t bytes, cudaStream_t stream) {
    poll();
    segment* in = nullptr;
    char* base = nullptr;
    auto best = std::map<std::size_t, piece>::iterator{};
    for (auto& [begin, s] : segments_) {
      if (s.stream != stream) continue;
      for (auto p = s.pieces.begin(); p != s.pieces.end(); ++p) {
        if (!p->second.free || p->second.bytes < bytes) continue;
        if (in != nullptr && best->second.bytes <= p->second.bytes) continue;
        in = &s;
        base = begin;
        best = p;
      }
    }
    if (in == nullptr) return nullptr;
    if (best->second.bytes > bytes) in->pieces[best->first + bytes] = {best->second.bytes - bytes, true};
    best->second = {bytes, false};
    return base + best->first;
  }
  void give(void* at) {
    auto s = segments_.upper_bound(static_cast<char*>(at));
    if (s == segments_.begin()) return;
    --s;
    std::map<std::size_t, piece>& pieces = s->second.pieces;
    auto p = pieces.find(static_cast<std::size_t>(static_cast<char*>(at) - s->first));
    if (p == pieces.end()) return;
    p->second.free = true;
    if (const auto next = std::next(p); next != pieces.end() && next->second.free) {
      p->second.bytes += next->second.bytes;
      pieces.erase(next);
    }
    if (p == pieces.begin()) return;
    if (const auto before = std::prev(p); before->second.free) {
      before->second.bytes += p->second.bytes;
      pieces.erase(p);
    }
  }
  /// The same, once those streams are done with what they were given so far. Where it throws, nothing has changed.
  void give_behind(void* at, const std::vector<cudaStream_t>& streams) {
    std::vector<event> events;
    events.reserve(streams.size());
    for (const cudaStream_t each : streams) {
      cudaEvent_t done = nullptr;
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
      events.emplace_back(done);
      C10_CUDA_CHECK(cudaEventRecord(done, each));
    }
    waiting_.emplace_back(at, std::move(events));
  }
  /// Segments of which nothing is held: no longer in here. The caller has waited for the device.
  std::vector<void*> take_idle() {
    poll();
    std::vector<void*> out;
    for (auto s = segments_.begin(); s != segments_.end();) {
      if (s->second.pieces.size() > 1 || !s->second.pieces.begin()->second.free) {
        ++s;
        continue;
      }
      out.push_back(s->first);
      bytes_ -= s->second.bytes;
      s = segments_.erase(s);
    }
    return out;
  }
  std::size_t bytes() const { return bytes_; }
  const std::map<char*, segment>& segments() const { return segments_; }

  bool pool_gone = false;

 private:
  struct destroyer {
    void operator()(cudaEvent_t e) const { C10_CUDA_CHECK_WARN(cudaEventDestroy(e)); }
  };
  using event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, destroyer>;

  void poll() {
    for (auto w = waiting_.begin(); w != waiting_.end();) {
      const bool done = std::all_of(w->second.begin(), w->second.end(),
                                    [](const event& e) { return cudaEventQuery(e.get()) == cudaSuccess; });
      static_cast<void>(cudaGetLastError());
      if (!done) {
        ++w;
        continue;
      }
      give(w->first);
      w = waiting_.erase(w);
    }
  }

  std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> from_;
  std::map<char*, segment> segments_;
  std::vector<std::pair<void*, std::vector<event>>> waiting_;
  std::size_t bytes_ = 0;
};
