/// The simulated device, and with CUDA's headers the CUDA device over the simulated driver.
#include "test_device.hpp"

#ifdef GPUMEM_TEST_SIMCUDA
#include <cuda.h>

#include <stdexcept>
#include <string>

#include "gpumem/cuda_device.hpp"
#include "simcuda.hpp"
#endif

namespace gpumem::conformance {
namespace {

std::vector<std::string> lines_of(const sim_device& referee) {
  std::vector<std::string> lines;
  for (const hazard& h : referee.hazards()) lines.push_back(h.to_string());
  return lines;
}

class simulated_test_device final : public test_device {
 public:
  explicit simulated_test_device(const sim_config& config) : device_{config} {}

  device& edge() override { return device_; }
  stream_ref create_stream() override { return device_.create_stream(); }
  void destroy_stream(stream_ref s) override { static_cast<void>(device_.destroy_stream(s)); }
  void use(stream_ref s, std::uint64_t lag_ns, void* p, std::uint64_t bytes) override {
    device_.enqueue_use(s, lag_ns, reinterpret_cast<std::uintptr_t>(p), bytes);
  }
  status begin_capture(stream_ref s) override { return device_.begin_capture(s); }
  status end_capture(stream_ref s) override { return device_.end_capture(s); }
  void handed_out(void* p, std::uint64_t bytes, stream_ref to) override {
    device_.handed_out(reinterpret_cast<std::uintptr_t>(p), bytes, to);
  }
  void given_back(void* p) override { device_.given_back(reinterpret_cast<std::uintptr_t>(p)); }
  [[nodiscard]] std::vector<std::string> hazards() const override { return lines_of(device_); }
  sim_device* simulated() override { return &device_; }

 private:
  sim_device device_;
};

#ifdef GPUMEM_TEST_SIMCUDA
void check(CUresult done, const char* what) {
  if (done != CUDA_SUCCESS) throw std::runtime_error{std::string{what} + " failed: " + std::to_string(done)};
}

/// The unmodified cuda_device over the double; the test's own side uses the same driver.
class cuda_test_device final : public test_device {
 public:
  cuda_test_device() {
    simcuda::configure({.devices = 1, .bytes = device_bytes});
    const result<const cuda_driver*> driver = resolve_cuda_driver(reinterpret_cast<void*>(&cuGetProcAddress));
    if (!driver) throw std::runtime_error{driver.why().message()};
    result<std::unique_ptr<device>> opened = open_cuda_device({.ordinal = 0, .driver = *driver});
    if (!opened) throw std::runtime_error{opened.why().message()};
    device_ = *std::move(opened);
    CUcontext context = nullptr;
    check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  }
  ~cuda_test_device() override {
    for (CUgraph g : graphs_) static_cast<void>(cuGraphDestroy(g));
    device_.reset();
    static_cast<void>(cuCtxSetCurrent(nullptr));
  }

  device& edge() override { return *device_; }
  stream_ref create_stream() override {
    CUstream s = nullptr;
    check(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return {s};
  }
  void destroy_stream(stream_ref s) override { check(cuStreamDestroy(handle(s)), "cuStreamDestroy"); }
  void use(stream_ref s, std::uint64_t lag_ns, void* p, std::uint64_t bytes) override {
    simcuda::use(handle(s), lag_ns, reinterpret_cast<std::uintptr_t>(p), bytes);
  }
  status begin_capture(stream_ref s) override {
    const CUresult done = cuStreamBeginCapture(handle(s), CU_STREAM_CAPTURE_MODE_GLOBAL);
    return done == CUDA_SUCCESS ? status{} : status{errc::device_error, "cuStreamBeginCapture failed"};
  }
  status end_capture(stream_ref s) override {
    CUgraph graph = nullptr;
    const CUresult done = cuStreamEndCapture(handle(s), &graph);
    if (done != CUDA_SUCCESS) return {errc::device_error, "the capture was spoilt"};
    graphs_.push_back(graph);  // never destroyed: its blocks stay with it until the test releases them
    return {};
  }
  void handed_out(void* p, std::uint64_t bytes, stream_ref to) override {
    sim().handed_out(reinterpret_cast<std::uintptr_t>(p), bytes, simcuda::stream_of(handle(to)));
  }
  void given_back(void* p) override { sim().given_back(reinterpret_cast<std::uintptr_t>(p)); }
  [[nodiscard]] std::vector<std::string> hazards() const override { return lines_of(sim()); }
  sim_device* simulated() override { return &sim(); }

 private:
  static CUstream handle(stream_ref s) { return static_cast<CUstream>(s.handle); }
  static sim_device& sim() { return simcuda::device(0); }
  std::unique_ptr<device> device_;
  std::vector<CUgraph> graphs_;
};
#endif

}  // namespace

std::vector<device_kind> device_kinds() {
  std::vector<device_kind> kinds{
      {"sim", [] { return std::make_unique<simulated_test_device>(sim_config{.capacity_bytes = device_bytes}); }}};
#ifdef GPUMEM_TEST_SIMCUDA
  kinds.push_back({"cuda_over_double", [] { return std::make_unique<cuda_test_device>(); }});
#endif
  return kinds;
}

}  // namespace gpumem::conformance
