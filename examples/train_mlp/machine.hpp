// The machine of the training: streams, events, copies and kernels of a GPU, or the same on the CPU over the simulated
// device, where each kernel is a loop and the device's referee checks which stream touches which bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpumem/cuda_device.hpp"
#include "gpumem/sim_device.hpp"

#ifdef __CUDACC__
#include <cuda_runtime.h>

#include <cub/device/device_reduce.cuh>
#define BOTH __host__ __device__
#else
#define BOTH
#endif

namespace train {

/// Bytes that a kernel touches; for the referee.
struct span {
  const void* begin;
  std::size_t bytes;
};

inline void require(const gpumem::status& s) {
  if (!s) throw std::runtime_error{s.message()};
}

#ifdef __CUDACC__
inline void require(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error{cudaGetErrorString(e)};
}

template <typename Body>
__global__ void run_body(Body body, std::size_t n) {
  const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < n) body(i);
}
#endif

class machine {
 public:
  static constexpr std::uint64_t simulated_bytes = std::uint64_t{4} << 30;

  /// Runs on the simulated device.
  machine()
      : sim_{std::make_unique<gpumem::sim_device>(
            gpumem::sim_config{.capacity_bytes = simulated_bytes, .host_memory = true})} {}
  /// Runs on a GPU, by ordinal.
  explicit machine(int ordinal) {
    auto opened = gpumem::open_cuda_device({.ordinal = ordinal});
    require(opened.why());
    gpu_ = *std::move(opened);
#ifdef __CUDACC__
    require(cudaSetDevice(ordinal));
#else
    throw std::runtime_error{
        "this program was built without nvcc, so it has no kernels for a GPU; expected --device sim"};
#endif
  }

  [[nodiscard]] gpumem::device& edge() { return sim_ ? static_cast<gpumem::device&>(*sim_) : *gpu_; }
  [[nodiscard]] gpumem::sim_device* sim() { return sim_.get(); }

  gpumem::stream_ref create_stream() {
    if (sim_) return sim_->create_stream();
    void* made = nullptr;
#ifdef __CUDACC__
    cudaStream_t s = nullptr;
    require(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    made = s;
#endif
    return {made};
  }

  /// Makes `waiter` wait for all work enqueued on `first` so far.
  void order(gpumem::stream_ref first, gpumem::stream_ref waiter) {
    const auto f = edge().record(first);
    require(f.why());
    require(edge().wait_stream(waiter, *f));
    edge().drop(*f);
  }
  void wait_for_all() { require(edge().synchronize()); }
  /// The used memory of the whole device, by all processes.
  std::uint64_t used_bytes() {
    const auto now = edge().memory();
    require(now.why());
    return now->total_bytes - now->free_bytes;
  }
  /// The host waits for all work enqueued on the stream so far.
  void wait_for(gpumem::stream_ref s) {
    const auto f = edge().record(s);
    require(f.why());
    require(edge().wait_host(*f));
    edge().drop(*f);
  }

  /// Runs `body(i)` for each i below n on the stream; it touches `uses`.
  template <typename Body>
  void launch(gpumem::stream_ref s, std::size_t n, const Body& body, std::initializer_list<span> uses) {
    if (n == 0) return;
    if (sim_) {
      note(s, uses);
      for (std::size_t i = 0; i < n; ++i) body(i);
      return;
    }
#ifdef __CUDACC__
    constexpr unsigned threads = 128;
    run_body<<<static_cast<unsigned>((n + threads - 1) / threads), threads, 0, static_cast<cudaStream_t>(s.handle)>>>(
        body, n);
    require(cudaGetLastError());
#endif
  }

  /// Copies between pinned host memory and the device, in either direction.
  void copy(void* to, const void* from, std::size_t bytes, gpumem::stream_ref s, span device_side) {
    if (sim_) {
      note(s, {device_side});
      std::memcpy(to, from, bytes);
      return;
    }
#ifdef __CUDACC__
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(s.handle)));
#endif
  }

  /// out[0] = sum of in[0..n). On the GPU by CUB, whose temporary storage `take` provides and `give` gets back.
  template <typename Take, typename Give>
  void sum(const float* in, float* out, std::size_t n, gpumem::stream_ref s, const Take& take, const Give& give) {
    if (sim_) {
      note(s, {{in, n * sizeof(float)}, {out, sizeof(float)}});
      float total = 0;
      for (std::size_t i = 0; i < n; ++i) total += in[i];
      *out = total;
      return;
    }
#ifdef __CUDACC__
    std::size_t bytes = 0;
    const auto stream = static_cast<cudaStream_t>(s.handle);
    require(cub::DeviceReduce::Sum(nullptr, bytes, in, out, static_cast<int>(n), stream));
    void* const storage = take(bytes);
    require(cub::DeviceReduce::Sum(storage, bytes, in, out, static_cast<int>(n), stream));
    give(storage, bytes);
#else
    static_cast<void>(take);
    static_cast<void>(give);
#endif
  }

 private:
  static constexpr std::uint64_t kernel_ns = 20'000;

  void note(gpumem::stream_ref s, std::initializer_list<span> uses) {
    for (const span& u : uses) {
      sim_->enqueue_use(s, kernel_ns, static_cast<gpumem::address>(reinterpret_cast<std::uintptr_t>(u.begin)), u.bytes);
    }
  }

  std::unique_ptr<gpumem::sim_device> sim_;
  std::unique_ptr<gpumem::device> gpu_;
};

/// Parses `cuda`, `cuda:N` or `sim`; the default is a GPU if this program has kernels for it.
inline std::unique_ptr<machine> open_machine(const std::string& program, const std::string& named) {
  if (named == "sim") return std::make_unique<machine>();
  if (named.empty()) {
#ifdef __CUDACC__
    if (const auto count = gpumem::cuda_device_count(); count && *count > 0) return std::make_unique<machine>(0);
#endif
    std::fprintf(stderr, "%s: no GPU that this program can use, so it trains on the CPU (--device sim)\n",
                 program.c_str());
    return std::make_unique<machine>();
  }
  if (named == "cuda") return std::make_unique<machine>(0);
  if (named.starts_with("cuda:") && named.size() > 5 && named.size() < 10 &&
      named.find_first_not_of("0123456789", 5) == std::string::npos) {
    return std::make_unique<machine>(std::stoi(named.substr(5)));
  }
  throw std::invalid_argument{"--device " + named + ": expected sim, cuda or cuda:N"};
}

/// A point in a stream's work that the host can wait for; initially none.
class moment {
 public:
  explicit moment(machine& on) : on_{&on} {}
  moment(const moment&) = delete;
  moment& operator=(const moment&) = delete;
  ~moment() { on_->edge().drop(reached_); }
  /// Sets the point after all work enqueued on the stream so far.
  void mark(gpumem::stream_ref s) {
    on_->edge().drop(std::exchange(reached_, {}));
    const auto f = on_->edge().record(s);
    require(f.why());
    reached_ = *f;
  }
  void wait() {
    if (reached_) require(on_->edge().wait_host(reached_));
  }

 private:
  machine* on_;
  gpumem::fence reached_;
};

}  // namespace train
