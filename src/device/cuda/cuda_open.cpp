// Opens a GPU: reads its properties from the driver.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "cuda_device.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t plain_granularity_bytes = std::uint64_t{2} << 20;  // the least memory that cuMemAlloc occupies
constexpr std::string_view simulated_name = "simulated";                   // the prefix of the names of test doubles

/// A MIG instance has MIG in its name ("NVIDIA H100 80GB HBM3 MIG 1g.10gb"); NVML uses another prefix for its UUID.
std::string uuid_text(const CUuuid& uuid, std::string_view name) {
  std::string text = name.find(" MIG ") != std::string_view::npos ? "MIG-" : "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace

result<std::unique_ptr<device>> cuda_device::open(const cuda_driver& driver, const cuda_config& config) {
  const auto ask = [&](const auto& call, auto... arguments) {
    return checked(
        driver, call, [&] { return fmt::format("of device {}", config.ordinal); }, arguments...);
  };
  const result<int> count = cuda_device_count(&driver);
  if (!count) return count.why();
  const auto exists = [&](int ordinal) { return ordinal >= 0 && ordinal < *count; };
  const auto range = [&] {
    return *count == 0 ? std::string{"the driver shows no GPU to this process (CUDA_VISIBLE_DEVICES?)"}
                       : fmt::format("expected 0 to {}", *count - 1);
  };
  if (!exists(config.ordinal)) {
    return status{errc::wrong_device, fmt::format("CUDA device {} does not exist: {}", config.ordinal, range())};
  }
  CUdevice handle{};
  if (status ok = ask(driver.device_get, &handle, config.ordinal); !ok) return ok;
  device_info info;
  info.ordinal = config.ordinal;
  info.granularity_bytes = plain_granularity_bytes;
  info.reports_captures = true;
  std::array<char, 256> name{};
  if (status ok = ask(driver.device_get_name, name.data(), static_cast<int>(name.size()), handle); !ok) return ok;
  info.name = name.data();
  info.simulated = info.name.starts_with(simulated_name);
  CUuuid uuid{};
  if (status ok = ask(driver.device_get_uuid, &uuid, handle); !ok) return ok;
  info.uuid = uuid_text(uuid, info.name);
  std::size_t total = 0;
  if (status ok = ask(driver.device_total_mem, &total, handle); !ok) return ok;
  info.total_bytes = total;
  int integrated = 0;
  int compute_mode = CU_COMPUTEMODE_DEFAULT;
  for (const auto& [which, into] : {std::pair{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &info.compute_major},
                                    std::pair{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &info.compute_minor},
                                    std::pair{CU_DEVICE_ATTRIBUTE_INTEGRATED, &integrated},
                                    std::pair{CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, &compute_mode}}) {
    if (status ok = ask(driver.device_get_attribute, into, which, handle); !ok) return ok;
  }
  info.integrated = integrated != 0;
  info.exclusive = compute_mode != CU_COMPUTEMODE_DEFAULT;

  auto made = std::make_unique<cuda_device>(driver, handle, std::move(info));
  if (status ok = made->read_page_properties(); !ok) return ok;
  for (const int peer : config.peers) {
    CUdevice peer_handle{};
    int can = 0;
    if (exists(peer) && peer != config.ordinal) {
      if (status ok = ask(driver.device_get, &peer_handle, peer); !ok) return ok;
      if (status ok = ask(driver.device_can_access_peer, &can, peer_handle, handle); !ok) return ok;
    }
    if (can == 0) {
      return status{errc::wrong_device, fmt::format("device {} cannot be a peer of device {}: expected another "
                                                    "device that can reach its memory",
                                                    peer, config.ordinal)};
    }
    const mutex_lock lock{made->access_mutex_};
    made->access_.push_back({.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer_handle},
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  return std::unique_ptr<device>{std::move(made)};
}

int cuda_device::attribute(CUdevice_attribute kind) const {
  int value = 0;
  return driver_.device_get_attribute(&value, kind, handle_) == CUDA_SUCCESS ? value : 0;
}

// Makes mapped pages exportable to other processes and accessible to network cards, if the device supports it. Returns
// an error if a call fails, because a failed call does not mean that the device cannot map pages.
status cuda_device::read_page_properties() {
  const auto no_answer = [](CUresult error) {
    return error != CUDA_SUCCESS && error != CUDA_ERROR_NOT_SUPPORTED && error != CUDA_ERROR_INVALID_VALUE;
  };
  const auto failed = [this](const auto& function, CUresult error) {
    return driver_status(driver_, function.name, error, fmt::format("of device {}", info_.ordinal));
  };
  int maps = 0;
  const CUresult asked =
      driver_.device_get_attribute(&maps, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, handle_);
  if (no_answer(asked)) return failed(driver_.device_get_attribute, asked);
  if (asked != CUDA_SUCCESS || maps == 0) return {};
  pages_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  pages_.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = handle_};
  if (attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0) {
    pages_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  if (attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0) {
    pages_.allocFlags.gpuDirectRDMACapable = 1;
  }
  std::size_t page = 0;
  const CUresult sized = driver_.mem_granularity(&page, &pages_, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (no_answer(sized)) return failed(driver_.mem_granularity, sized);
  if (sized == CUDA_SUCCESS) info_.page_bytes = page;
  const mutex_lock lock{access_mutex_};
  access_.push_back(
      {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = handle_}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  return {};
}

}  // namespace gpumem
