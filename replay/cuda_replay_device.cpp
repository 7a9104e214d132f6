#include "cuda_replay_device.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "assign_or_return.hpp"
#include "control.h"
#include "gpumem/cuda_device.hpp"
#include "process_files.hpp"

namespace gpumem::bench {

struct simcuda_functions {
  decltype(&simcuda_configure) configure;
  decltype(&simcuda_set_granularity) set_granularity;
  decltype(&simcuda_use) use;
  decltype(&simcuda_handed_out) handed_out;
  decltype(&simcuda_given_back) given_back;
  decltype(&simcuda_advance_by) advance_by;
  decltype(&simcuda_advance_to) advance_to;
  decltype(&simcuda_used_bytes) used_bytes;
  decltype(&simcuda_peak_used_bytes) peak_used_bytes;
  decltype(&simcuda_hazards) hazards;
  decltype(&simcuda_in_calls_ns) in_calls_ns;
  decltype(&simcuda_device_calls) device_calls;
};

namespace {

constexpr const char* driver_name = "libcuda.so.1";
constexpr const char* simulated_plug_in = "libgpumem_baselines_simulated.so";
constexpr const char* gpu_plug_in = "libgpumem_baselines.so";

/// Looks next to the program, in the installation, and in the build tree.
std::string find_library(const std::string& name) {
  std::error_code why;
  const auto own_folder = own_program().parent_path();
  for (const std::filesystem::path& folder :
       {own_folder / "simcuda", own_folder, own_folder.parent_path() / "lib/gpumem",
        std::filesystem::path{GPUMEM_BENCH_SIMCUDA_FOLDER}}) {
    if (std::filesystem::exists(folder / name, why)) return (folder / name).string();
  }
  return {};
}

result<void*> open_library(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return status{errc::unsupported, fmt::format("{}: {}", path, dlerror())};
  return library;
}

result<void*> load(const std::string& name) {
  const std::string path = name.find('/') == std::string::npos ? find_library(name) : name;
  if (path.empty()) {
    return status{
        errc::unsupported,
        fmt::format("{} not found; expected it in gpumem_bench's folder, in ../lib/gpumem or in {} (it is built "
                    "if a CUDA Toolkit is installed)",
                    name, GPUMEM_BENCH_SIMCUDA_FOLDER)};
  }
  return open_library(path);
}

template <typename Pointer>
bool find(void* library, Pointer& function, const char* name) {
  function = reinterpret_cast<Pointer>(dlsym(library, name));
  return function != nullptr;
}

/// The functions of the simulated driver, from the libcuda.so.1 that the process has loaded.
result<const simcuda_functions*> simulated_driver() {
  static const result<const simcuda_functions*> loaded = []() -> result<const simcuda_functions*> {
    const char* const named = std::getenv("GPUMEM_CUDA_DRIVER");
    const bool is_named = named != nullptr && *named != '\0';
    ASSIGN_OR_RETURN(void* const library, is_named ? open_library(named) : load(driver_name));
    static simcuda_functions f;
    const bool all =
        find(library, f.configure, "simcuda_configure") && find(library, f.use, "simcuda_use") &&
        find(library, f.set_granularity, "simcuda_set_granularity") &&
        find(library, f.handed_out, "simcuda_handed_out") && find(library, f.given_back, "simcuda_given_back") &&
        find(library, f.advance_by, "simcuda_advance_by") && find(library, f.advance_to, "simcuda_advance_to") &&
        find(library, f.used_bytes, "simcuda_used_bytes") &&
        find(library, f.peak_used_bytes, "simcuda_peak_used_bytes") && find(library, f.hazards, "simcuda_hazards") &&
        find(library, f.in_calls_ns, "simcuda_in_calls_ns") && find(library, f.device_calls, "simcuda_device_calls");
    if (!all) return status{errc::unsupported, "the loaded driver is not the double of this build"};
    return static_cast<const simcuda_functions*>(&f);
  }();
  return loaded;
}

result<const gpumem_baseline_api*> plug_in(const cuda_replay_config& config) {
  ASSIGN_OR_RETURN(const auto library, load(!config.plug_in.empty() ? config.plug_in
                                            : config.simulated      ? simulated_plug_in
                                                                    : gpu_plug_in));
  const gpumem_baseline_api* (*baselines)() = nullptr;
  if (!find(library, baselines, "gpumem_baselines")) return status{errc::unsupported, "no plug-in with baselines"};
  return baselines();
}

std::mutex& one_at_a_time() {
  static std::mutex mutex;
  return mutex;
}

void* pointer(address block_address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(block_address)); }

}  // namespace

status load_simulated_driver() { return simulated_driver().why(); }

status load_simulated_runtime() {
  if (const auto driver = simulated_driver(); !driver) return driver.why();
  for (const char* name : {"libcudart.so.13", "libnvidia-ml.so.1"}) {
    if (const auto loaded = load(name); !loaded) return loaded.why();
  }
  return {};
}

status load_plug_in(const std::string& path) { return plug_in({.plug_in = path}).why(); }

result<std::unique_ptr<cuda_replay_device>> cuda_replay_device::open(const cuda_replay_config& config) {
  std::unique_ptr<cuda_replay_device> opened{new cuda_replay_device{config}};
  opened->only_ = std::unique_lock{one_at_a_time()};
  if (config.simulated) {
    ASSIGN_OR_RETURN(opened->sim_, simulated_driver());
    opened->sim_->set_granularity(config.granularity_bytes);
    opened->sim_->configure(1, config.bytes, 0, config.referee ? 1 : 0);
  }
  ASSIGN_OR_RETURN(opened->api_, plug_in(config));
  if (const int code = opened->api_->set_device(config.ordinal); code != 0) {
    return status{errc::device_error,
                  fmt::format("cudaSetDevice({}) failed: {}", config.ordinal, opened->api_->error_text(code))};
  }
  return opened;
}

cuda_replay_device::~cuda_replay_device() {
  if (api_ == nullptr) return;
  api_->synchronize();
  for (void* s : streams_) api_->stream_destroy(s);
  if (sim_ != nullptr) api_->reset();  // drops the runtime's context before the simulated driver is reset
}

stream_ref cuda_replay_device::create_stream() {
  void* s = nullptr;
  if (api_->stream_create(&s) != 0) return {};
  streams_.push_back(s);
  return {s};
}

void cuda_replay_device::advance_by(std::uint64_t ns) {
  if (sim_ != nullptr) sim_->advance_by(ns);
}

void cuda_replay_device::advance_to(std::uint64_t ns) {
  if (sim_ != nullptr) sim_->advance_to(ns);
}

void cuda_replay_device::enqueue_use(stream_ref stream, std::uint64_t lag_ns, address block_address,
                                     std::uint64_t bytes) {
  if (!config_.works) return;
  if (sim_ != nullptr) {
    sim_->use(stream.handle, lag_ns, block_address, bytes);
  } else {
    api_->touch(pointer(block_address), bytes, stream.handle);
  }
}

void cuda_replay_device::handed_out(address block_address, std::uint64_t bytes, stream_ref stream) {
  if (sim_ != nullptr) sim_->handed_out(block_address, bytes, stream.handle);
}

void cuda_replay_device::given_back(address block_address) {
  if (sim_ != nullptr) sim_->given_back(block_address);
}

std::uint64_t cuda_replay_device::used_bytes() {
  const std::uint64_t current = sim_ != nullptr ? sim_->used_bytes() : asks_reserved_ ? asks_reserved_() : 0;
  peak_used_ = std::max(peak_used_, current);
  return current;
}

std::uint64_t cuda_replay_device::peak_used_bytes() { return sim_ != nullptr ? sim_->peak_used_bytes() : peak_used_; }

std::optional<std::uint64_t> cuda_replay_device::hazards() {
  return sim_ != nullptr ? std::optional{sim_->hazards()} : std::nullopt;
}

std::optional<std::uint64_t> cuda_replay_device::in_calls_ns() {
  return sim_ != nullptr ? std::optional{sim_->in_calls_ns()} : std::nullopt;
}

std::optional<call_counts> cuda_replay_device::device_calls() {
  if (sim_ == nullptr) return std::nullopt;
  call_counts counts{};
  sim_->device_calls(counts.data(), static_cast<int>(counts.size()));
  return counts;
}

}  // namespace gpumem::bench
