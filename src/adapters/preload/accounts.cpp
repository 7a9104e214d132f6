#include "accounts.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
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

served_device* served_with_account(int ordinal) noexcept {
  if (ordinal < 0 || ordinal >= most_devices) return nullptr;
  served_device* const d = open_devices[ordinal].load(std::memory_order_acquire);
  return d != nullptr && d->account.active() ? d : nullptr;
}

/// An account, and what is known of its device.
struct account_view {
  int ordinal = -1;
  ledger* account = nullptr;
  const served_device* served = nullptr;  ///< null: only counted
  const device_info* info = nullptr;
  group_ledger* group = nullptr;
  std::uint64_t limit_bytes = 0;  ///< on the whole process; 0: none
  [[nodiscard]] explicit operator bool() const noexcept { return account != nullptr; }
};

account_view view_of(served_device& d) noexcept {
  return {d.ordinal, &d.account, &d, &d.on->info(), d.group.get(), d.whole_process ? d.limit_bytes : 0};
}
account_view view_of(unserved_device& d) noexcept {
  return {d.ordinal, &d.account, nullptr, &d.on->info(), d.group.get(), d.whole_process ? d.limit_bytes : 0};
}

/// The account of a device; none where there is none that counts.
account_view account_of(int ordinal) noexcept {
  if (served_device* const d = served_with_account(ordinal)) return view_of(*d);
  if (unserved_device* const d = unserved_account(ordinal)) return view_of(*d);
  return {};
}

/// The account of the current context's device, opened where it was not yet.
account_view account_of_current(CUresult* refusal) noexcept {
  served_device* const served = current_device(refusal);
  if (*refusal != CUDA_SUCCESS) return {};
  if (served != nullptr) return served->account.active() ? view_of(*served) : account_view{};
  if (served_device* const d = served_with_account(current_ordinal())) return view_of(*d);
  if (unserved_device* const d = unserved_current(refusal)) return view_of(*d);
  return {};
}

CUcontext current_context() noexcept {
  CUcontext here = nullptr;
  return calls() != nullptr && calls()->ctx_get_current(&here) == CUDA_SUCCESS ? here : nullptr;
}

/// What the driver says is used on the current device.
bool used_on_current(std::uint64_t* bytes) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (driver_call<entry::mem_get_info>(&free_bytes, &total_bytes) != CUDA_SUCCESS) return false;
  *bytes = total_bytes - free_bytes;
  return true;
}

std::uint64_t reserved_by(const served_device& d) {
  std::uint64_t bytes = 0;
  for (const logical_device& l : d.memory->devices()) {
    if (const result<statistics> s = d.memory->stats(l.ordinal)) bytes += s->reserved_bytes;
  }
  return bytes;
}

/// All GPUs as they were when the process had no context yet; empty where NVML cannot tell.
const std::vector<gpu_usage>& used_at_first() {
  static const auto* const seen = [] {
    auto* const out = new std::vector<gpu_usage>;
    if (result<std::vector<gpu_usage>> now = gpu_usage_now()) *out = *std::move(now);
    return out;
  }();
  return *seen;
}

/// What is used beside gpumem's segments and what was counted: by this process where NVML tells it apart, else by all.
/// Of two looks whose difference counts both are of one kind, or other processes' allocations would be in it.
used_memory unaccounted(const account_view& d, bool of_process) {
  used_memory out{.of_process = of_process, .ordinal = d.ordinal};
  std::uint64_t used = 0;
  std::uint64_t ours = 0;
  if (of_process) {
    const std::optional<std::uint64_t> own = nvml_own_bytes(d.info->uuid);
    out.known = own.has_value();
    used = own.value_or(0);
  } else {
    out.known = used_on_current(&used);
    if (d.group != nullptr && d.group->counts_measured()) ours = d.group->held_by_others();
  }
  ours += (d.served != nullptr ? reserved_by(*d.served) : 0) + d.account->counted_bytes();
  out.bytes = used > ours ? used - ours : 0;
  return out;
}

}  // namespace

std::uint64_t process_bytes(const device_info& info, group_ledger* group) noexcept {
  if (const std::optional<std::uint64_t> own = nvml_own_bytes(info.uuid)) return *own;
  const auto before = std::ranges::find(used_at_first(), info.uuid, &gpu_usage::uuid);
  if (before != used_at_first().end() && !info.simulated) {  // a simulated card is this process's alone
    if (const result<memory_info> now = nvml_memory(info.uuid)) {
      const std::uint64_t used = now->total_bytes - now->free_bytes;
      return used > before->used_bytes ? used - before->used_bytes : 0;
    }
  }
  if (group == nullptr || !group->counts_measured()) {
    std::uint64_t used = 0;
    return used_on_current(&used) ? used : 0;
  }
  // Another process of the job that takes memory between the two looks would be counted here: the least of a few
  // counts.
  constexpr int looks = 3;
  std::uint64_t least = UINT64_MAX;
  for (int i = 0; i < looks; ++i) {
    std::uint64_t used = 0;
    const std::uint64_t others = group->held_by_others();
    if (!used_on_current(&used)) return 0;
    least = std::min(least, used > others ? used - others : 0);
  }
  return least;
}

bool fits_process_limit(const device_info& of, std::uint64_t limit_bytes, std::uint64_t bytes) noexcept {
  const std::optional<std::uint64_t> own = nvml_own_bytes(of.uuid);
  return !own || (*own <= limit_bytes && bytes <= limit_bytes - *own);
}

charge charge_for(const price& p, bool dedicated) noexcept {
  charge out;
  const bool counts = dedicated || limits_process();
  if (p.bytes == 0 || (!counts && !guards_memory())) return out;
  CUresult refusal = CUDA_SUCCESS;
  account_view d = account_of_current(&refusal);
  if (refusal != CUDA_SUCCESS) {
    out.granted = false;
    return out;
  }
  if (!counts) return out;
  if (p.ordinal >= 0) d = account_of(p.ordinal);
  if (!d) return out;
  out.granted =
      (d.limit_bytes == 0 || fits_process_limit(*d.info, d.limit_bytes, p.bytes)) && d.account->charge(p.bytes);
  out.ordinal = d.ordinal;
  out.bytes = p.bytes;
  return out;
}

void keep_receipt(const charge& c, kept_as kind, std::uint64_t given, bool with_context) noexcept {
  if (c.ordinal < 0) return;
  const std::uint64_t context = with_context ? reinterpret_cast<std::uintptr_t>(current_context()) : 0;
  switch (kind) {
    case kept_as::address:
      return address_receipts().keep(given, c.ordinal, c.bytes, context);
    case kept_as::handle:
      return handle_receipts().keep(given, c.ordinal, c.bytes, context);
    case kept_as::pages:
      return all_pages().created(given, c.ordinal, c.bytes);
    case kept_as::graph:
      graph_bytes[static_cast<std::size_t>(c.ordinal)].fetch_add(c.bytes);
      return;
  }
}

void context_ended(CUcontext context) noexcept {
  const auto which = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(context));
  refund(address_receipts().take_context(which));
  refund(handle_receipts().take_context(which));
}

void refund(const receipts::entry& e) noexcept {
  if (e.bytes == 0) return;
  if (const account_view d = account_of(e.ordinal)) d.account->refund(e.bytes);
}

receipts& address_receipts() noexcept {
  static auto* const only = new receipts;
  return *only;
}
receipts& handle_receipts() noexcept {
  static auto* const only = new receipts;
  return *only;
}
page_receipts& all_pages() noexcept {
  static auto* const only = new page_receipts;
  return *only;
}

// The account went with the device; what is left on it belongs to no context.
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
  // A segment on its way into the pool is used on the device and not yet the pool's: the least of a few looks counts.
  constexpr int looks = 3;
  std::uint64_t least = UINT64_MAX;
  for (int i = 0; i < looks; ++i) {
    const used_memory now = unaccounted(d, before.of_process);
    if (!now.known) return;
    least = std::min(least, now.bytes);
    if (least <= before.bytes) return;
    std::this_thread::yield();
  }
  d.account->add_measured(least - before.bytes);
}

}  // namespace gpumem::preload
