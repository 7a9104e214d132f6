// Queries about memory: the results describe the program's block and not the segment that gpumem allocated.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "checked_mutex.hpp"
#include "driver_calls.hpp"
#include "gpumem/policy.hpp"
#include "log.hpp"
#include "other_contexts.hpp"
#include "process_accounting.hpp"
#include "served.hpp"

namespace gpumem::preload {
namespace {

/// The first identity of a gpumem block: far above the identities that the driver assigns.
constexpr std::uint64_t first_identity = std::uint64_t{1} << 62;

struct identities {
  checked_mutex mutex;
  std::atomic<bool> any{false};
  std::unordered_map<CUdeviceptr, std::uint64_t> by_address GPUMEM_GUARDED_BY(mutex);
  std::uint64_t next GPUMEM_GUARDED_BY(mutex) = first_identity;
};
identities& all_identities() {
  static auto* const only = new identities;
  return *only;
}

/// Names the setting that makes gpumem map the block's memory, for messages: GPUMEM_BACKING if the policy leaves the
/// choice to that variable, else the policy.
std::string mapped_by(const served_context& device, const block_info& block) {
  const auto& pools = device.memory->devices();
  const auto its =
      std::find_if(pools.begin(), pools.end(), [&](const auto& pool) { return pool.ordinal == block.device; });
  const std::string policy = its != pools.end() ? its->policy : "";
  const auto entry = find_policy(policy);
  const auto is_backing = [](const policy_parameter& parameter) { return parameter.name == "backing"; };
  const bool by_variable = policy.find("backing=") == std::string::npos && entry &&
                           std::any_of(entry->parameters.begin(), entry->parameters.end(), is_backing);
  return by_variable ? "GPUMEM_BACKING=mapped" : fmt::format("policy {}", policy);
}

/// Writes an attribute that differs between the block and its segment; false if the driver's value is right.
bool correct(CUpointer_attribute attribute, void* value, const block_info& block) {
  const auto write = [value](auto corrected) { return *static_cast<decltype(corrected)*>(value) = corrected, true; };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return write(CUdeviceptr{block.begin});
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return write(std::size_t{block.requested_bytes});
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return write(static_cast<unsigned long long>(identity_of(block.begin)));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return write(0);
    default:
      return false;
  }
}

}  // namespace

std::uint64_t identity_of(CUdeviceptr begin) {
  identities& all = all_identities();
  const mutex_lock lock{all.mutex};
  all.any.store(true, std::memory_order_release);
  const auto [at, added] = all.by_address.emplace(begin, all.next);
  if (added) ++all.next;
  return at->second;
}

void forget_identity(CUdeviceptr begin) noexcept {
  identities& all = all_identities();
  if (!all.any.load(std::memory_order_acquire)) return;
  const mutex_lock lock{all.mutex};
  all.by_address.erase(begin);
}

// Memory that gpumem holds and the program does not use is free; memory beyond a limit is not.
std::optional<std::uint64_t> free_for_program(const served_context& device, std::uint64_t free_on_device) noexcept {
  std::uint64_t reserved = 0;
  std::uint64_t in_use = 0;
  for (const logical_device& l : device.memory->devices()) {
    const result<statistics> s = device.memory->stats(l.ordinal);
    if (!s) return std::nullopt;
    reserved += s->reserved_bytes;
    in_use += s->live_bytes + s->leaked_bytes;
  }
  const std::uint64_t reachable = free_on_device + (reserved - in_use);
  if (device.account.active()) in_use += device.account.beside_bytes();
  return std::min(reachable, device.limit_bytes > in_use ? device.limit_bytes - in_use : 0);
}

std::optional<std::uint64_t> limit_before_opening(int ordinal, std::uint64_t total_bytes) noexcept {
  const std::optional<byte_limit> limit = process_limit_of(ordinal);
  if (!limit || limit->unit == byte_limit::kind::of_free) return std::nullopt;
  return limit->resolve(total_bytes, total_bytes);
}

namespace {

/// Limits the driver's figures in a context that gpumem only counts.
CUresult limited_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  CUresult refusal = CUDA_SUCCESS;
  const unserved_device* const d = unserved_current(&refusal);
  if (d == nullptr || !d->whole_process) return CUDA_SUCCESS;
  const std::uint64_t used = d->account.beside_bytes();
  const std::uint64_t left = d->limit_bytes > used ? d->limit_bytes - used : 0;
  *free_bytes = std::min<std::size_t>(*free_bytes, left);
  if (total_bytes != nullptr) *total_bytes = std::min<std::size_t>(*total_bytes, d->limit_bytes);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI mem_get_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  const CUresult e = driver_call<entry::mem_get_info>(free_bytes, total_bytes);
  if (e != CUDA_SUCCESS || free_bytes == nullptr) return e;
  CUresult refusal = CUDA_SUCCESS;
  const served_context* const d = current_device(&refusal);
  if (d == nullptr) return refusal == CUDA_SUCCESS ? limited_info(free_bytes, total_bytes) : e;
  *free_bytes = free_for_program(*d, *free_bytes).value_or(*free_bytes);
  if (d->whole_process && total_bytes != nullptr) *total_bytes = std::min<std::size_t>(*total_bytes, d->limit_bytes);
  return e;
}

CUresult CUDAAPI device_total_mem(std::size_t* bytes, CUdevice device) {
  const CUresult e = driver_call<entry::device_total_mem>(bytes, device);
  if (e != CUDA_SUCCESS) return e;
  if (const auto limit = limit_before_opening(device, *bytes)) *bytes = std::min<std::size_t>(*bytes, *limit);
  return e;
}

CUresult CUDAAPI mem_get_address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr dptr) {
  block_info block;
  if (holder_of(dptr, &block) == nullptr) return driver_call<entry::mem_get_address_range>(base, bytes, dptr);
  if (base != nullptr) *base = block.begin;
  if (bytes != nullptr) *bytes = block.requested_bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI pointer_get_attribute(void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  const CUresult e = driver_call<entry::pointer_get_attribute>(value, attribute, ptr);
  block_info block;
  if (value == nullptr || holder_of(ptr, &block) == nullptr) return e;
  return correct(attribute, value, block) ? CUDA_SUCCESS : e;
}

CUresult CUDAAPI pointer_get_attributes(unsigned int count, CUpointer_attribute* attributes, void** values,
                                        CUdeviceptr ptr) {
  const CUresult e = driver_call<entry::pointer_get_attributes>(count, attributes, values, ptr);
  block_info block;
  if (e != CUDA_SUCCESS || attributes == nullptr || values == nullptr || holder_of(ptr, &block) == nullptr) return e;
  for (unsigned int i = 0; i < count; ++i) {
    if (values[i] != nullptr) static_cast<void>(correct(attributes[i], values[i], block));
  }
  return e;
}

// Refuses handles of blocks: mapped memory has none, and the driver's handle would cover the whole segment, so that an
// importer would silently see the segment's beginning.
CUresult CUDAAPI ipc_get_mem_handle(CUipcMemHandle* handle, CUdeviceptr dptr) {
  block_info block;
  const served_context* const d = holder_of(dptr, &block);
  if (d == nullptr) return driver_call<entry::ipc_get_mem_handle>(handle, dptr);
  const std::string why =
      block.mapped ? fmt::format("{} maps its pages, and mapped memory has no such handle", mapped_by(*d, block))
                   : fmt::format("the block lies inside a segment of {} that other blocks share",
                                 format_bytes(block.segment_bytes));
  log_line(fmt::format(
      "cuIpcGetMemHandle of {:#x}: refused, {}; set GPUMEM_IPC=1 for a program that shares memory with other processes",
      dptr, why));
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpumem::preload
