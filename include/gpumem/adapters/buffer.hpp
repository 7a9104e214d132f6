/// `buffer<T>`: a device array with stream-ordered lifetime, freed at the end of its scope; needs no framework.
///
/// It holds raw bytes: it constructs, clears and copies nothing. Movable, not copyable; one thread at a time. The
/// allocator must outlive it.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "gpumem/allocator.hpp"

namespace gpumem {

template <typename T>
class buffer {
  static_assert(std::is_trivially_copyable_v<T>, "device memory holds bytes: T must be trivially copyable");

 public:
  buffer() noexcept = default;
  /// Allocates `count` elements for work on `stream`. Throws `out_of_memory` or `bad_request`; 0 elements take nothing.
  buffer(allocator& upstream, std::size_t count, stream_ref stream = {}, int device = 0)
      : buffer{&upstream, count, stream, device} {}

  buffer(buffer&& source) noexcept { swap(source); }
  buffer& operator=(buffer&& source) noexcept {
    buffer former{std::move(source)};
    swap(former);
    return *this;
  }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  ~buffer() { give(); }

  void swap(buffer& rhs) noexcept {
    std::swap(upstream_, rhs.upstream_);
    std::swap(stream_, rhs.stream_);
    std::swap(device_, rhs.device_);
    std::swap(moved_stream_, rhs.moved_stream_);
    std::swap(data_, rhs.data_);
    std::swap(size_, rhs.size_);
    std::swap(capacity_, rhs.capacity_);
  }

  /// An address on the device.
  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// The device addresses as a span; the host must not read or write its elements.
  [[nodiscard]] std::span<T> span() const noexcept { return {data_, size_}; }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] int device() const noexcept { return device_; }

  /// Changes the number of elements. Within the capacity nothing moves; beyond it the contents are lost. If this
  /// throws, the buffer is unchanged. Throws `bad_request` if a buffer without an allocator has to grow.
  void resize(std::size_t count) {
    resize(count, [](T*, const T*, std::size_t, stream_ref) {});
  }
  /// The same, but keeps the contents: `copy(T* to, const T* from, std::size_t bytes, stream_ref)` enqueues a copy on
  /// the buffer's stream. The old block is freed after the copy, in stream order.
  template <typename Copy>
  void resize(std::size_t count, const Copy& copy) {
    if (count > capacity_) {
      buffer larger{upstream_, count, stream_, device_};
      if (size_ != 0) copy(larger.data_, static_cast<const T*>(data_), size_bytes(), stream_);
      swap(larger);
    }
    size_ = count;
  }

  /// Makes `stream` the buffer's stream, on which it is used and freed from now on. Requires that `stream` is ordered
  /// behind the work that uses the buffer.
  void set_stream(stream_ref stream) noexcept {
    moved_stream_ = moved_stream_ || !(stream == stream_);
    stream_ = stream;
  }
  /// States that work on `stream` also uses the buffer. After its free, the block is reusable only when that work is
  /// done.
  status also_used_on(stream_ref stream) { return data_ == nullptr ? status{} : upstream_->record_use(data_, stream); }

  /// Frees the memory now.
  void reset() noexcept {
    give();
    size_ = capacity_ = 0;
  }
  /// Passes ownership to the caller, which must free the block with the allocator.
  [[nodiscard]] T* release() noexcept {
    size_ = capacity_ = 0;
    return std::exchange(data_, nullptr);
  }

 private:
  buffer(allocator* upstream, std::size_t count, stream_ref stream, int device)
      : upstream_{upstream}, stream_{stream}, device_{device}, data_{take(count)}, size_{count}, capacity_{count} {}

  T* take(std::size_t count) const {
    if (count == 0) return nullptr;
    if (upstream_ == nullptr) throw bad_request{{errc::invalid_argument, "a buffer without an allocator cannot grow"}};
    // The allocator refuses an impossible size, with a report.
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max() / sizeof(T);
    const std::size_t bytes = count > most ? std::numeric_limits<std::size_t>::max() : count * sizeof(T);
    return static_cast<T*>(upstream_->allocate(bytes, stream_, device_));
  }
  void give() noexcept {
    if (data_ == nullptr) return;
    gpumem::free_args stated;
    if (moved_stream_) stated.stream = stream_;
    upstream_->deallocate(std::exchange(data_, nullptr), stated);
  }

  allocator* upstream_ = nullptr;
  stream_ref stream_{};
  int device_ = 0;
  bool moved_stream_ = false;
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace gpumem
