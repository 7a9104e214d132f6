// The source of the training's device memory: gpumem, or for comparison the driver's own two allocators.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpumem/allocator.hpp"
#include "machine.hpp"

namespace train {

class memory {
 public:
  memory() = default;
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  virtual ~memory() = default;

  virtual void* take(std::size_t bytes, gpumem::stream_ref s) = 0;
  /// Frees in the order of the stream of the allocation.
  virtual void give(void* p) = 0;
  /// States that work on another stream uses it too.
  virtual void also_used_on(void* p, gpumem::stream_ref s) = 0;
  /// The most memory taken from the device at once.
  [[nodiscard]] virtual std::uint64_t peak_bytes() = 0;
  [[nodiscard]] virtual std::string name() const = 0;
};

/// As a program that links gpumem would write it; the environment wins over its settings.
inline std::shared_ptr<gpumem::allocator> open_gpumem(machine& on, gpumem::settings with) {
  std::vector<std::string> problems;
  require(with.apply(gpumem::process_environment(), &problems));
  for (const std::string& line : problems) throw std::runtime_error{line};
  const std::array<gpumem::device*, 1> devices{&on.edge()};
  auto opened = gpumem::allocator::open(devices, with);
  require(opened.why());
  return *std::move(opened);
}

/// One logical device of it.
class gpumem_memory final : public memory {
 public:
  gpumem_memory(machine& on, std::shared_ptr<gpumem::allocator> from, int logical)
      : on_{on}, allocator_{std::move(from)}, logical_{logical} {}
  void* take(std::size_t bytes, gpumem::stream_ref s) override {
    void* const p = allocator_->allocate(bytes, s, logical_);
    if (on_.sim() != nullptr) on_.sim()->handed_out(number(p), bytes, s);
    return p;
  }
  void give(void* p) override {
    if (on_.sim() != nullptr) on_.sim()->given_back(number(p));
    allocator_->deallocate(p);
  }
  void also_used_on(void* p, gpumem::stream_ref s) override { require(allocator_->record_use(p, s)); }
  std::uint64_t peak_bytes() override { return allocator_->stats(logical_)->peak_reserved_bytes; }
  [[nodiscard]] std::string name() const override {
    return "gpumem, policy " + allocator_->devices()[static_cast<std::size_t>(logical_)].policy;
  }

 private:
  static gpumem::address number(const void* p) {
    return static_cast<gpumem::address>(reinterpret_cast<std::uintptr_t>(p));
  }
  machine& on_;
  std::shared_ptr<gpumem::allocator> allocator_;
  int logical_;
};

/// One driver allocation a block; the free waits for the device.
class plain_memory final : public memory {
 public:
  explicit plain_memory(machine& on) : on_{on} {}
  void* take(std::size_t bytes, gpumem::stream_ref /*s*/) override {
    const std::uint64_t unit = on_.edge().info().granularity_bytes;
    const std::uint64_t whole = (bytes + unit - 1) / unit * unit;
    const auto p = on_.edge().alloc(whole);
    require(p.why());
    sizes_[*p] = whole;
    peak_ = std::max(peak_, used_ += whole);
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(*p));
  }
  void give(void* p) override {
    const auto at = static_cast<gpumem::address>(reinterpret_cast<std::uintptr_t>(p));
    require(on_.edge().free(at));
    used_ -= sizes_[at];
    sizes_.erase(at);
  }
  void also_used_on(void* /*p*/, gpumem::stream_ref /*s*/) override {}
  std::uint64_t peak_bytes() override { return peak_; }
  [[nodiscard]] std::string name() const override { return "cuda_malloc"; }

 private:
  machine& on_;
  std::map<gpumem::address, std::uint64_t> sizes_;
  std::uint64_t used_ = 0;
  std::uint64_t peak_ = 0;
};

#ifdef __CUDACC__
/// The driver's own pool, set to keep its memory.
class async_memory final : public memory {
 public:
  explicit async_memory(machine& on) : on_{on} {
    std::uint64_t keep = UINT64_MAX;
    require(cudaDeviceGetDefaultMemPool(&pool_, on.edge().info().ordinal));
    require(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
  }
  void* take(std::size_t bytes, gpumem::stream_ref s) override {
    void* p = nullptr;
    require(cudaMallocAsync(&p, bytes, static_cast<cudaStream_t>(s.handle)));
    blocks_[p] = {s, {}};
    return p;
  }
  void give(void* p) override {
    const auto found = blocks_.find(p);
    for (const gpumem::stream_ref user : found->second.users) on_.order(user, found->second.stream);
    require(cudaFreeAsync(p, static_cast<cudaStream_t>(found->second.stream.handle)));
    blocks_.erase(found);
  }
  void also_used_on(void* p, gpumem::stream_ref s) override { blocks_[p].users.push_back(s); }
  std::uint64_t peak_bytes() override {
    std::uint64_t bytes = 0;
    require(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemHigh, &bytes));
    return bytes;
  }
  [[nodiscard]] std::string name() const override { return "cuda_malloc_async"; }

 private:
  struct block {
    gpumem::stream_ref stream;
    std::vector<gpumem::stream_ref> users;
  };
  machine& on_;
  cudaMemPool_t pool_ = nullptr;
  std::map<void*, block> blocks_;
};
#endif

/// An array on the device, freed at the end of its scope.
template <typename T>
class array {
 public:
  array(memory& from, std::size_t count, gpumem::stream_ref s)
      : from_{&from}, data_{static_cast<T*>(from.take(count * sizeof(T), s))}, count_{count} {}
  array(array&& other) noexcept
      : from_{other.from_}, data_{std::exchange(other.data_, nullptr)}, count_{other.count_} {}
  array& operator=(array&& other) noexcept {
    std::swap(from_, other.from_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  array(const array&) = delete;
  array& operator=(const array&) = delete;
  ~array() {
    if (data_ == nullptr) return;
    try {
      from_->give(data_);
    } catch (const std::exception& failed) {  // the device failed before; that error is reported
      std::fprintf(stderr, "train_mlp: %s\n", failed.what());
    }
  }
  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] span all() const noexcept { return {data_, count_ * sizeof(T)}; }

 private:
  memory* from_;
  T* data_;
  std::size_t count_;
};

}  // namespace train
