#include "sim_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>

#include "assign_or_return.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t address_alignment = std::uint64_t{2} << 20;
constexpr std::uint64_t host_page_bytes = 4096;
constexpr std::uint64_t max_address_space = std::uint64_t{1} << 62;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

status invalid(std::string message) { return {errc::invalid_argument, std::move(message)}; }

}  // namespace

sim_memory::sim_memory(const sim_config& config)
    : capacity_bytes_{config.capacity_bytes},
      granularity_bytes_{config.granularity_bytes},
      page_bytes_{config.page_bytes},
      address_step_{std::lcm(std::lcm(address_alignment, granularity_bytes_), std::max<std::uint64_t>(page_bytes_, 1))},
      foreign_bytes_{config.foreign_bytes} {
  // Adds space for the gap after the last segment.
  address begin = round_up(config.first_address, address_step_);
  std::uint64_t bytes = std::min(config.address_space_bytes, max_address_space) + address_step_;
  if (config.host_memory) {
    bytes = host_range_bytes(config);
    result<host_backing> reserved = host_backing::reserve(bytes, address_step_);
    if (reserved) {
      host_ = *std::move(reserved);
      begin = host_.begin();
      free_file_.insert(0, max_address_space);
    } else {
      bytes = 0;  // without addresses every request fails with an error
    }
  }
  if (bytes != 0) free_addresses_.insert(begin, begin + bytes);
}

std::uint64_t sim_memory::host_range_bytes(const sim_config& config) const {
  constexpr std::uint64_t least = std::uint64_t{64} << 20;
  const std::uint64_t wanted = std::max(config.host_range_capacities * config.capacity_bytes, least);
  return round_up(std::min(wanted, config.address_space_bytes), address_step_) + address_step_;
}

// Reports missing host memory as missing device memory.
status sim_memory::open_host(address begin, std::uint64_t bytes) { return host_ ? host_.open(begin, bytes) : status{}; }

void sim_memory::close_host(address begin, std::uint64_t bytes) {
  if (host_) static_cast<void>(host_.close(begin, round_up(bytes, host_page_bytes)));
}

// --- addresses and physical memory -------------------------------------------------------------------------

result<address> sim_memory::take_addresses(device_call call, std::uint64_t bytes, std::uint64_t gap_bytes) {
  std::optional<address> begin;
  if (bytes <= max_address_space) begin = free_addresses_.first_fit(bytes + gap_bytes, address_step_);
  if (!begin) {
    return status{errc::out_of_memory,
                  fmt::format("{} of {} bytes: no such range is left in the address space", to_string(call), bytes)};
  }
  free_addresses_.erase(*begin, *begin + bytes + gap_bytes);
  return *begin;
}

void sim_memory::give_addresses(address begin, std::uint64_t bytes, std::uint64_t gap_bytes) {
  free_addresses_.insert(begin, begin + bytes + gap_bytes);
}

std::uint64_t sim_memory::free_bytes() const noexcept {
  const std::uint64_t foreign = std::min(foreign_bytes_, capacity_bytes_);
  const std::uint64_t left = capacity_bytes_ - foreign;
  return left > used_bytes_ ? left - used_bytes_ : 0;
}

status sim_memory::take_physical(device_call call, std::uint64_t bytes) {
  if (bytes > free_bytes()) {
    return {errc::out_of_memory,
            fmt::format("{} of {} bytes: {} free of {} ({} used here, {} by other processes)", to_string(call), bytes,
                        free_bytes(), capacity_bytes_, used_bytes_, foreign_bytes_)};
  }
  used_bytes_ += bytes;
  peak_used_bytes_ = std::max(peak_used_bytes_, used_bytes_);
  return {};
}

// --- segments ----------------------------------------------------------------------------------------------

result<address> sim_memory::alloc(std::uint64_t bytes) {
  if (bytes == 0 || bytes % granularity_bytes_ != 0) {
    return invalid(
        fmt::format("alloc of {} bytes: expected a multiple of {} and more than 0", bytes, granularity_bytes_));
  }
  if (status taken = take_physical(device_call::alloc, bytes); !taken) return taken;
  const result<address> begin = add_segment(device_call::alloc, bytes, plain_);
  if (!begin) used_bytes_ -= bytes;
  return begin;
}

result<std::uint64_t> sim_memory::free(address segment) {
  const auto bytes = remove_segment(segment, plain_);
  if (!bytes) return invalid(fmt::format("free of {:#x}: not the begin of a plain segment of this device", segment));
  used_bytes_ -= *bytes;
  return *bytes;
}

result<address> sim_memory::alloc_host(std::uint64_t bytes) {
  if (bytes == 0) return invalid("alloc_host of 0 bytes: expected more than 0");
  return add_segment(device_call::alloc_host, bytes, pinned_);
}

result<std::uint64_t> sim_memory::free_host(address segment) {
  if (const auto bytes = remove_segment(segment, pinned_)) return *bytes;
  return invalid(fmt::format("free_host of {:#x}: not the begin of a pinned segment of this device", segment));
}

result<address> sim_memory::add_segment(device_call call, std::uint64_t bytes, segment_map& segments) {
  const result<address> begin = take_addresses(call, bytes, granularity_bytes_);
  if (!begin) return begin;
  if (status opened = open_host(*begin, bytes); !opened) {
    give_addresses(*begin, bytes, granularity_bytes_);
    return opened;
  }
  segments.emplace(*begin, bytes);
  accessible_.insert(*begin, *begin + bytes);
  return begin;
}

std::optional<std::uint64_t> sim_memory::remove_segment(address segment, segment_map& segments) {
  const auto found = segments.find(segment);
  if (found == segments.end()) return std::nullopt;
  const std::uint64_t bytes = found->second;
  segments.erase(found);
  close_host(segment, bytes);
  accessible_.erase(segment, segment + bytes);
  give_addresses(segment, bytes, granularity_bytes_);
  return bytes;
}

// --- mapped pages ------------------------------------------------------------------------------------------

status sim_memory::check_pages(device_call call, std::uint64_t bytes) const {
  if (page_bytes_ == 0) {
    return {errc::unsupported, fmt::format("{}: this device cannot map pages", to_string(call))};
  }
  if (bytes == 0 || bytes % page_bytes_ != 0) {
    return invalid(fmt::format("{} of {} bytes: expected a multiple of the page ({}) and more than 0", to_string(call),
                               bytes, page_bytes_));
  }
  return {};
}

result<address> sim_memory::reserve(std::uint64_t bytes) {
  if (status pages = check_pages(device_call::reserve, bytes); !pages) return pages;
  const result<address> begin = take_addresses(device_call::reserve, bytes, 0);
  if (begin) reservations_.emplace(*begin, bytes);
  return begin;
}

status sim_memory::release_range(address range, std::uint64_t bytes) {
  if (status pages = check_pages(device_call::release_range, bytes); !pages) return pages;
  const auto found = reservations_.find(range);
  if (found == reservations_.end() || found->second != bytes) {
    return invalid(fmt::format("release_range of {} bytes at {:#x}: not a reserved range of that size", bytes, range));
  }
  const auto mapped = mappings_.lower_bound(range);
  if (mapped != mappings_.end() && mapped->first < range + bytes) {
    return invalid(fmt::format("release_range of {} bytes at {:#x}: still mapped at {:#x}, expected no mapping", bytes,
                               range, mapped->first));
  }
  reservations_.erase(found);
  give_addresses(range, bytes, 0);
  return {};
}

result<page_run> sim_memory::create(std::uint64_t bytes, bool on_host) {
  if (status pages = check_pages(device_call::create, bytes); !pages) return pages;
  if (!on_host) {
    if (status taken = take_physical(device_call::create, bytes); !taken) return taken;
  }
  run made{.bytes = bytes, .on_host = on_host};
  if (host_) {
    made.offset = free_file_.first_fit(bytes, page_bytes_).value_or(0);
    free_file_.erase(made.offset, made.offset + bytes);
  }
  runs_.emplace(++last_run_id_, made);
  return page_run{last_run_id_};
}

result<std::uint64_t> sim_memory::destroy(page_run pages) {
  if (page_bytes_ == 0) return check_pages(device_call::destroy, 0);
  const auto found = runs_.find(pages.id);
  if (found == runs_.end() || found->second.destroyed) {
    return invalid(fmt::format("destroy of page run {}: no such run, or destroyed before", pages.id));
  }
  const std::uint64_t bytes = found->second.bytes;
  found->second.destroyed = true;
  give_run_back_if_unheld(pages.id);
  return bytes;
}

void sim_memory::give_run_back_if_unheld(std::uint64_t run_id) {
  const auto found = runs_.find(run_id);
  if (!found->second.destroyed || found->second.mappings != 0) return;
  const run& r = found->second;
  if (!r.on_host) used_bytes_ -= r.bytes;
  if (host_) {
    host_.discard(r.offset, r.bytes);
    free_file_.insert(r.offset, r.offset + r.bytes);
  }
  runs_.erase(found);
}

status sim_memory::map(address begin, std::uint64_t bytes, page_run pages) {
  if (status checked = check_pages(device_call::map, bytes); !checked) return checked;
  const auto found = runs_.find(pages.id);
  if (found == runs_.end() || found->second.destroyed) {
    return invalid(fmt::format("map of page run {}: no such run, or destroyed before", pages.id));
  }
  if (found->second.bytes != bytes) {
    return invalid(
        fmt::format("map of {} bytes of page run {}: expected all of its {}", bytes, pages.id, found->second.bytes));
  }
  auto range = reservations_.upper_bound(begin);
  if (range == reservations_.begin() || begin % page_bytes_ != 0 || (--range, begin - range->first > range->second) ||
      range->second - (begin - range->first) < bytes) {
    return invalid(fmt::format("map of {} bytes at {:#x}: expected whole pages of one reserved range", bytes, begin));
  }
  const auto next = mappings_.lower_bound(begin);
  if ((next != mappings_.end() && next->first < begin + bytes) ||
      (next != mappings_.begin() && std::prev(next)->second.end > begin)) {
    return invalid(fmt::format("map of {} bytes at {:#x}: part of it is mapped already", bytes, begin));
  }
  mappings_.emplace_hint(next, begin, mapping{.end = begin + bytes, .run_id = pages.id});
  ++found->second.mappings;
  live_mappings_ += bytes / page_bytes_;
  (found->second.was_mapped ? remapped_pages_ : mapped_pages_) += bytes / page_bytes_;
  found->second.was_mapped = true;
  found->second.latest = begin;
  return {};
}

address sim_memory::mapped_elsewhere(page_run pages) const {
  const auto found = runs_.find(pages.id);
  if (found == runs_.end() || found->second.mappings == 0) return 0;
  const auto is_here = [&](const auto& entry) { return entry.second.run_id == pages.id; };
  const auto latest = mappings_.find(found->second.latest);
  if (latest != mappings_.end() && is_here(*latest)) return latest->first;
  return std::ranges::find_if(mappings_, is_here)->first;
}

result<sim_memory::mapping_span> sim_memory::mappings_in(device_call call, address begin, std::uint64_t bytes) {
  if (status pages = check_pages(call, bytes); !pages) return pages;
  const auto first = mappings_.find(begin);
  auto last = first;
  address reached = begin;
  while (last != mappings_.end() && last->first == reached && last->second.end - begin <= bytes) {
    reached = last->second.end;
    ++last;
  }
  if (reached - begin != bytes) {
    return invalid(fmt::format("{} of {} bytes at {:#x}: expected whole mappings without a hole, found {} bytes",
                               to_string(call), bytes, begin, reached - begin));
  }
  return mapping_span{first, last};
}

status sim_memory::set_access(address begin, std::uint64_t bytes) {
  ASSIGN_OR_RETURN(const auto span, mappings_in(device_call::set_access, begin, bytes));
  if (live_mappings_ > mapping_ceiling) {
    return {errc::out_of_memory,
            fmt::format("set_access of {} bytes at {:#x}: {} pages are mapped, the device holds {}", bytes, begin,
                        live_mappings_, mapping_ceiling)};
  }
  for (auto entry = span.first; entry != span.last; ++entry) {
    if (entry->second.accessible) continue;
    if (host_) {
      const run& r = runs_.find(entry->second.run_id)->second;
      if (status mapped = host_.map(entry->first, r.bytes, r.offset); !mapped) return mapped;
    }
    entry->second.accessible = true;
    accessible_.insert(entry->first, entry->second.end);
  }
  return {};
}

status sim_memory::unmap(address begin, std::uint64_t bytes) {
  ASSIGN_OR_RETURN(const auto span, mappings_in(device_call::unmap, begin, bytes));
  for (auto entry = span.first; entry != span.last; ++entry) {
    const std::uint64_t run_id = entry->second.run_id;
    --runs_.find(run_id)->second.mappings;
    give_run_back_if_unheld(run_id);
  }
  close_host(begin, bytes);
  mappings_.erase(span.first, span.last);
  accessible_.erase(begin, begin + bytes);
  live_mappings_ -= bytes / page_bytes_;
  return {};
}

}  // namespace gpumem
