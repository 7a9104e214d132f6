#include "process_accounting.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <vector>

#include "driver_calls.hpp"
#include "gpumem/gpu_usage.hpp"
#include "gpumem/settings.hpp"
#include "nvml.hpp"
#include "other_contexts.hpp"

namespace gpumem::preload {
namespace {

std::array<std::atomic<std::uint64_t>, most_devices> graph_bytes;

served_context* served_with_account(int ordinal) noexcept {
  if (ordinal < 0 || ordinal >= most_devices) return nullptr;
  served_context* const d = open_devices[ordinal].load(std::memory_order_acquire);
  return d != nullptr && d->account.active() ? d : nullptr;
}

/// An account and its device's details.
struct account_view {
  int ordinal = -1;
  process_budget* account = nullptr;
  const served_context* served = nullptr;  ///< null: counted only
  const device_info* info = nullptr;
  group_ledger* group = nullptr;
  std::uint64_t limit_bytes = 0;  ///< of the whole process; 0: none
  [[nodiscard]] explicit operator bool() const noexcept { return account != nullptr; }
};

account_view view_of(served_context& device) noexcept {
  return {device.ordinal,
          &device.account,
          &device,
          &device.cuda_device->info(),
          device.group.get(),
          device.whole_process ? device.limit_bytes : 0};
}
account_view view_of(unserved_device& device) noexcept {
  return {device.ordinal,
          &device.account,
          nullptr,
          &device.cuda_device->info(),
          device.group.get(),
          device.whole_process ? device.limit_bytes : 0};
}

/// Returns the account of a device, or an empty view if nothing is counted there.
account_view account_of(int ordinal) noexcept {
  if (served_context* const d = served_with_account(ordinal)) return view_of(*d);
  if (unserved_device* const d = unserved_account(ordinal)) return view_of(*d);
  return {};
}

/// Returns the account of the current context's device and opens it at first use.
account_view account_of_current(CUresult* refusal) noexcept {
  served_context* const served = current_device(refusal);
  if (*refusal != CUDA_SUCCESS) return {};
  if (served != nullptr) return served->account.active() ? view_of(*served) : account_view{};
  if (served_context* const d = served_with_account(current_ordinal())) return view_of(*d);
  if (unserved_device* const d = unserved_current(refusal)) return view_of(*d);
  return {};
}

CUcontext current_context() noexcept {
  CUcontext context = nullptr;
  return calls() != nullptr && calls()->ctx_get_current(&context) == CUDA_SUCCESS ? context : nullptr;
}

/// Reads the driver's figure for used memory on the current device.
bool used_on_current(std::uint64_t* bytes) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (driver_call<entry::mem_get_info>(&free_bytes, &total_bytes) != CUDA_SUCCESS) return false;
  *bytes = total_bytes - free_bytes;
  return true;
}

std::uint64_t reserved_by(const served_context& device) {
  std::uint64_t bytes = 0;
  for (const logical_device& l : device.memory->devices()) {
    if (const result<statistics> s = device.memory->stats(l.ordinal)) bytes += s->reserved_bytes;
  }
  return bytes;
}

/// Returns the memory used on all GPUs before the process made a context; empty if NVML cannot tell.
const std::vector<gpu_usage>& used_at_first() {
  static const auto* const seen = [] {
    auto* const usage = new std::vector<gpu_usage>;
    if (result<std::vector<gpu_usage>> sampled = gpu_usage_now()) *usage = *std::move(sampled);
    return usage;
  }();
  return *seen;
}

/// Returns the memory used outside gpumem's segments and the counted calls: by this process where NVML reports it per
/// process, else by all. Two samples that are subtracted must use the same source (`of_process`), or other processes'
/// allocations enter the difference.
used_memory unaccounted(const account_view& view, bool of_process) {
  used_memory memory{.of_process = of_process, .ordinal = view.ordinal};
  std::uint64_t used = 0;
  std::uint64_t ours = 0;
  if (of_process) {
    const std::optional<std::uint64_t> own = nvml_own_bytes(view.info->uuid);
    memory.known = own.has_value();
    used = own.value_or(0);
  } else {
    memory.known = used_on_current(&used);
    if (view.group != nullptr && view.group->counts_measured()) ours = view.group->held_by_others();
  }
  ours += (view.served != nullptr ? reserved_by(*view.served) : 0) + view.account->counted_bytes();
  memory.bytes = used > ours ? used - ours : 0;
  return memory;
}

}  // namespace

std::uint64_t process_bytes(const device_info& info, group_ledger* group) noexcept {
  if (const std::optional<std::uint64_t> own = nvml_own_bytes(info.uuid)) return *own;
  const auto before = std::ranges::find(used_at_first(), info.uuid, &gpu_usage::uuid);
  if (before != used_at_first().end() && !info.simulated) {  // only this process uses a simulated card
    if (const result<memory_info> memory = nvml_memory(info.uuid)) {
      const std::uint64_t used = memory->total_bytes - memory->free_bytes;
      return used > before->used_bytes ? used - before->used_bytes : 0;
    }
  }
  if (group == nullptr || !group->counts_measured()) {
    std::uint64_t used = 0;
    return used_on_current(&used) ? used : 0;
  }
  // Another process of the job may allocate between the two readings and inflate the difference, so take the least of a
  // few.
  constexpr int looks = 3;
  std::uint64_t least = UINT64_MAX;
  for (int i = 0; i < looks; ++i) {
    std::uint64_t used = 0;
    const std::uint64_t foreign_bytes = group->held_by_others();
    if (!used_on_current(&used)) return 0;
    least = std::min(least, used > foreign_bytes ? used - foreign_bytes : 0);
  }
  return least;
}

bool fits_process_limit(const device_info& info, std::uint64_t limit_bytes, std::uint64_t bytes) noexcept {
  const std::optional<std::uint64_t> own = nvml_own_bytes(info.uuid);
  return !own || (*own <= limit_bytes && bytes <= limit_bytes - *own);
}

charge charge_for(const call_size& size, bool dedicated) noexcept {
  charge made;
  const bool counts = dedicated || limits_process();
  if (size.bytes == 0 || (!counts && !guards_memory())) return made;
  CUresult refusal = CUDA_SUCCESS;
  account_view d = account_of_current(&refusal);
  if (refusal != CUDA_SUCCESS) {
    made.granted = false;
    return made;
  }
  if (!counts) return made;
  if (size.ordinal >= 0) d = account_of(size.ordinal);
  if (!d) return made;
  made.granted =
      (d.limit_bytes == 0 || fits_process_limit(*d.info, d.limit_bytes, size.bytes)) && d.account->charge(size.bytes);
  made.ordinal = d.ordinal;
  made.bytes = size.bytes;
  return made;
}

void keep_receipt(const charge& charged, receipt_kind kind, std::uint64_t given, bool with_context) noexcept {
  if (charged.ordinal < 0) return;
  const std::uint64_t context = with_context ? reinterpret_cast<std::uintptr_t>(current_context()) : 0;
  switch (kind) {
    case receipt_kind::address:
      return address_receipts().keep(given, charged.ordinal, charged.bytes, context);
    case receipt_kind::handle:
      return handle_receipts().keep(given, charged.ordinal, charged.bytes, context);
    case receipt_kind::pages:
      return all_pages().created(given, charged.ordinal, charged.bytes);
    case receipt_kind::graph:
      graph_bytes[static_cast<std::size_t>(charged.ordinal)].fetch_add(charged.bytes);
      return;
  }
}

void context_ended(CUcontext context) noexcept {
  const auto context_id = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(context));
  refund(address_receipts().take_context(context_id));
  refund(handle_receipts().take_context(context_id));
}

void refund(const charge_table::entry& charged) noexcept {
  if (charged.bytes == 0) return;
  if (const account_view d = account_of(charged.ordinal)) d.account->refund(charged.bytes);
}

charge_table& address_receipts() noexcept {
  static auto* const only = new charge_table;
  return *only;
}
charge_table& handle_receipts() noexcept {
  static auto* const only = new charge_table;
  return *only;
}
page_receipts& all_pages() noexcept {
  static auto* const only = new page_receipts;
  return *only;
}

// The reset destroyed the device's memory and its account, so drop the receipts.
void device_was_reset(int ordinal) noexcept {
  static_cast<void>(address_receipts().take_all(ordinal));
  static_cast<void>(handle_receipts().take_all(ordinal));
  if (ordinal >= 0 && ordinal < most_devices) graph_bytes[static_cast<std::size_t>(ordinal)] = 0;
}

void graphs_hold(int ordinal, std::uint64_t bytes) noexcept {
  if (ordinal < 0 || ordinal >= most_devices) return;
  std::atomic<std::uint64_t>& counted = graph_bytes[static_cast<std::size_t>(ordinal)];
  std::uint64_t before = counted.load();
  while (bytes < before && !counted.compare_exchange_weak(before, bytes)) {
  }
  if (bytes < before) refund({ordinal, before - bytes});
}

std::shared_mutex& counting() noexcept {
  static auto* const only = new std::shared_mutex;
  return *only;
}

used_memory measure_before() noexcept {
  CUresult refusal = CUDA_SUCCESS;
  static_cast<void>(used_at_first());
  const account_view d = account_of_current(&refusal);
  if (!d) return {};
  const used_memory own = unaccounted(d, true);
  return own.known ? own : unaccounted(d, false);
}

void measure_after(const used_memory& before) noexcept {
  if (!before.known) return;
  const account_view d = account_of(before.ordinal);
  if (!d) return;
  // A segment that is being added to the pool counts as used but not yet as the pool's, so take the least of a few
  // samples.
  constexpr int looks = 3;
  std::uint64_t least = UINT64_MAX;
  for (int i = 0; i < looks; ++i) {
    const used_memory sample = unaccounted(d, before.of_process);
    if (!sample.known) return;
    least = std::min(least, sample.bytes);
    if (least <= before.bytes) return;
    std::this_thread::yield();
  }
  d.account->add_measured(least - before.bytes);
}

}  // namespace gpumem::preload
