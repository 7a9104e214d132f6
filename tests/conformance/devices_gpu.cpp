/// The real GPU, restricted to one GiB: filling a large card would take hours.
///
/// GPUMEM_TEST_DEVICE chooses the ordinal (0). Without a driver or a GPU the program says so and exits with 77, which
/// ctest reports as skipped.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>

#include "device_decorator.hpp"
#include "gpumem/cuda_device.hpp"
#include "test_device.hpp"

namespace gpumem::conformance {
namespace {

// Keeps a stream busy for so many nanoseconds and then writes one byte of the block.
constexpr const char* spin_ptx = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 lag_ns, .param .u64 at) {
  .reg .pred %p;
  .reg .b64 %lag, %at, %begin, %now, %gone;
  .reg .b16 %byte;
  ld.param.u64 %lag, [lag_ns];
  ld.param.u64 %at, [at];
  mov.u64 %begin, %globaltimer;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %gone, %now, %begin;
  setp.lt.u64 %p, %gone, %lag;
  @%p bra again;
  cvta.to.global.u64 %at, %at;
  mov.u16 %byte, 1;
  st.global.u8 [%at], %byte;
  ret;
}
)";

/// The test program's own driver calls, separate from gpumem's.
struct program_driver {
  decltype(&cuDeviceGet) device_get;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxSetCurrent) set_current;
  decltype(&cuStreamCreate) stream_create;
  decltype(&cuStreamDestroy) stream_destroy;
  decltype(&cuStreamBeginCapture) begin_capture;
  decltype(&cuStreamEndCapture) end_capture;
  decltype(&cuGraphDestroy) graph_destroy;
  decltype(&cuModuleLoadData) module_load;
  decltype(&cuModuleGetFunction) module_function;
  decltype(&cuLaunchKernel) launch;
  CUfunction spin = nullptr;
};

void check(CUresult done, const char* what) {
  if (done != CUDA_SUCCESS) throw std::runtime_error{std::string{what} + " failed: " + std::to_string(done)};
}

int ordinal() {
  const char* const named = std::getenv("GPUMEM_TEST_DEVICE");
  return named == nullptr ? 0 : std::atoi(named);
}

template <typename Pointer>
void find(void* library, Pointer& into, const char* name) {
  into = reinterpret_cast<Pointer>(dlsym(library, name));
  if (into == nullptr) throw std::runtime_error{std::string{"the driver lacks "} + name};
}

/// Loaded once. The context is kept, because creating one takes a good part of a second.
const program_driver& driver() {
  static const program_driver loaded = [] {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) throw std::runtime_error{dlerror()};
    program_driver d{};
    find(library, d.device_get, "cuDeviceGet");
    find(library, d.retain, "cuDevicePrimaryCtxRetain");
    find(library, d.set_current, "cuCtxSetCurrent");
    find(library, d.stream_create, "cuStreamCreate");
    find(library, d.stream_destroy, "cuStreamDestroy_v2");
    find(library, d.begin_capture, "cuStreamBeginCapture_v2");
    find(library, d.end_capture, "cuStreamEndCapture");
    find(library, d.graph_destroy, "cuGraphDestroy");
    find(library, d.module_load, "cuModuleLoadData");
    find(library, d.module_function, "cuModuleGetFunction");
    find(library, d.launch, "cuLaunchKernel");
    CUdevice device{};
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    check(d.device_get(&device, ordinal()), "cuDeviceGet");
    check(d.retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(d.set_current(context), "cuCtxSetCurrent");
    check(d.module_load(&module, spin_ptx), "cuModuleLoadData");
    check(d.module_function(&d.spin, module, "spin"), "cuModuleGetFunction");
    return d;
  }();
  return loaded;
}

/// Restricts a device to `bytes`.
class slice_device final : public device_decorator {
 public:
  slice_device(std::unique_ptr<device> whole, std::uint64_t bytes)
      : device_decorator{*whole}, whole_{std::move(whole)}, info_{whole_->info()} {
    info_.total_bytes = bytes;
  }
  [[nodiscard]] const device_info& info() const noexcept override { return info_; }

 private:
  bool take(std::uint64_t bytes) {
    const std::lock_guard lock{mutex_};
    if (bytes > info_.total_bytes - used_) return false;
    used_ += bytes;
    return true;
  }
  template <typename Key>
  void taken(std::map<Key, std::uint64_t>& by, Key key, std::uint64_t bytes) {
    const std::lock_guard lock{mutex_};
    by[key] = bytes;
  }
  template <typename Key>
  void gave_back(std::map<Key, std::uint64_t>& by, Key key) {
    const std::lock_guard lock{mutex_};
    used_ -= by[key];
    by.erase(key);
  }
  void untake(std::uint64_t bytes) {
    const std::lock_guard lock{mutex_};
    used_ -= bytes;
  }
  static status full() { return {errc::out_of_memory, "the slice of the device is full"}; }

  result<address> do_alloc(std::uint64_t bytes) override {
    if (!take(bytes)) return full();
    result<address> at = whole_->alloc(bytes);
    at ? taken(segments_, *at, bytes) : untake(bytes);
    return at;
  }
  status do_free(address segment) override {
    status done = whole_->free(segment);
    if (done) gave_back(segments_, segment);
    return done;
  }
  result<page_run> do_create(std::uint64_t bytes) override {
    if (!take(bytes)) return full();
    result<page_run> pages = whole_->create(bytes);
    pages ? taken(runs_, pages->id, bytes) : untake(bytes);
    return pages;
  }
  status do_destroy(page_run pages) override {
    status done = whole_->destroy(pages);
    if (done) gave_back(runs_, pages.id);
    return done;
  }
  result<memory_info> do_memory() override {
    const std::lock_guard lock{mutex_};
    return memory_info{.free_bytes = info_.total_bytes - used_, .total_bytes = info_.total_bytes};
  }

  std::unique_ptr<device> whole_;
  device_info info_;
  std::mutex mutex_;
  std::uint64_t used_ = 0;
  std::map<address, std::uint64_t> segments_;
  std::map<std::uint64_t, std::uint64_t> runs_;
};

class gpu_test_device final : public test_device {
 public:
  gpu_test_device() {
    static_cast<void>(driver());
    result<std::unique_ptr<device>> opened = open_cuda_device({.ordinal = ordinal(), .driver = nullptr});
    if (!opened) throw std::runtime_error{opened.why().message()};
    device_ = std::make_unique<slice_device>(*std::move(opened), device_bytes);
  }
  ~gpu_test_device() override {
    EXPECT_TRUE(device_->synchronize().ok());
    for (CUgraph g : graphs_) EXPECT_EQ(driver().graph_destroy(g), CUDA_SUCCESS);
    for (CUstream s : streams_) EXPECT_EQ(driver().stream_destroy(s), CUDA_SUCCESS);
  }
  device& edge() override { return *device_; }
  stream_ref create_stream() override {
    CUstream s = nullptr;
    check(driver().stream_create(&s, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    streams_.push_back(s);
    return {s};
  }
  void destroy_stream(stream_ref s) override {
    check(driver().stream_destroy(handle(s)), "cuStreamDestroy");
    std::erase(streams_, handle(s));
  }
  void use(stream_ref s, std::uint64_t lag_ns, void* p, std::uint64_t /*bytes*/) override {
    void* arguments[] = {&lag_ns, &p};
    check(driver().launch(driver().spin, 1, 1, 1, 1, 1, 1, 0, handle(s), arguments, nullptr), "cuLaunchKernel");
  }
  status begin_capture(stream_ref s) override {
    const CUresult done = driver().begin_capture(handle(s), CU_STREAM_CAPTURE_MODE_GLOBAL);
    return done == CUDA_SUCCESS ? status{} : status{errc::device_error, "cuStreamBeginCapture failed"};
  }
  status end_capture(stream_ref s) override {
    CUgraph graph = nullptr;
    if (driver().end_capture(handle(s), &graph) != CUDA_SUCCESS) return {errc::device_error, "the capture was spoilt"};
    graphs_.push_back(graph);  // never destroyed: its blocks stay with it until the test releases them
    return {};
  }

 private:
  static CUstream handle(stream_ref s) { return static_cast<CUstream>(s.handle); }
  std::unique_ptr<device> device_;
  std::vector<CUstream> streams_;
  std::vector<CUgraph> graphs_;
};

}  // namespace

std::vector<device_kind> device_kinds() {
  return {{"gpu", [] { return std::make_unique<gpu_test_device>(); }}};
}

}  // namespace gpumem::conformance

int main(int argc, char** argv) {
  const auto opened = gpumem::open_cuda_device({.ordinal = gpumem::conformance::ordinal(), .driver = nullptr});
  if (!opened) {
    std::printf("skipped: %s\n", opened.why().message().c_str());
    return 77;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
