// The begin and the end of an allocator: its pools are opened, and its reports and recordings are written.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "assign_or_return.hpp"
#include "exit_report.hpp"
#include "log.hpp"
#include "logical_devices.hpp"
#include "pooled_allocator.hpp"

namespace gpumem {
namespace {

logical_device describe_device(const logical_pool& opened) {
  const pool_config& config = opened.pool->config();
  const device_info& gpu = opened.device->info();
  return {.ordinal = config.ordinal,
          .physical_ordinal = gpu.ordinal,
          .name = config.name,
          .policy = config.policy_name,
          .limit_bytes = config.limit_bytes,
          .gpu_name = gpu.name,
          .gpu_uuid = gpu.uuid,
          .gpu_total_bytes = gpu.total_bytes,
          .compute_major = gpu.compute_major,
          .compute_minor = gpu.compute_minor,
          .simulated = gpu.simulated};
}

void log_start(const settings& options, const std::vector<logical_device>& devices) {
  std::istringstream lines{options.describe()};
  for (std::string line; std::getline(lines, line);) log_line(line);
  for (const logical_device& d : devices) {
    log_line(fmt::format("pool {} is logical device {} on device {}: {}, at most {}", d.name, d.ordinal,
                         d.physical_ordinal, d.policy, format_bytes(d.limit_bytes)));
  }
}

}  // namespace

result<std::unique_ptr<allocator>> allocator::open(std::span<device* const> devices, const settings& options) {
  ASSIGN_OR_RETURN(auto made, pooled_allocator::open(devices, options));
  return std::unique_ptr<allocator>{std::move(made)};
}

result<std::unique_ptr<pooled_allocator>> pooled_allocator::open(std::span<device* const> devices,
                                                                 const settings& options) {
  return without_exceptions([&]() -> result<std::unique_ptr<pooled_allocator>> {
    auto made = std::make_unique<pooled_allocator>();
    if (status ok = made->start(devices, options); !ok) return ok;
    return made;
  });
}

pooled_allocator::pooled_allocator() {
  static std::atomic<std::uint64_t> latest{0};
  number_ = ++latest;
}

pooled_allocator::~pooled_allocator() {
  forget_at_exit(this);
  report();
}

status pooled_allocator::start(std::span<device* const> devices, const settings& options) {
  if (devices.empty()) return {errc::bad_setting, "no device: expected at least one"};
  for (device* d : devices) {
    if (d == nullptr) return {errc::invalid_argument, "a device of those to open is null; expected a device"};
    const settings own = options.for_device(d->info().ordinal);
    ASSIGN_OR_RETURN(auto configs, logical_devices(*d, own, static_cast<int>(pools_.size())));
    for (pool_config& config : configs) {
      config.allocator_number = number_;
      ASSIGN_OR_RETURN(auto opened, open_logical_pool(*d, std::move(config), own));
      devices_.push_back(describe_device(opened));
      if (opened.takes_everything) untouched_ = true;
      pools_.push_back(std::move(opened));
    }
  }
  stats_path_ = options.stats_path;
  oom_advice_ = options.oom_advice;
  if (!stats_path_.empty() && stats_path_ != "exit") {
    // Refuses a path that cannot be written now rather than at exit; write_stats reports a path that cannot be
    // opened.
    if (result<written_file> own = written_file::open(stats_path_)) {
      stats_path_ = own->path();
      stats_file_ = *std::move(own);
    }
    if (status ok = write_stats(stats_path_); !ok) {
      stats_path_.clear();
      return ok;
    }
  }
  log_settings_without_effect(devices, options);
  if (options.verbose) log_start(options, devices_);
  const bool recorded = std::ranges::any_of(pools_, [](const logical_pool& slot) { return !slot.recorders.empty(); });
  if (!stats_path_.empty() || recorded) remember_at_exit(this, [this] { report(); });
  return {};
}

status pooled_allocator::write_stats(const std::string& target) const {
  std::vector<statistics> figures;
  for (const logical_device& d : devices_) figures.push_back(*stats(d.ordinal));
  return write_statistics(target, devices_, figures);
}

void pooled_allocator::report() noexcept try {
  if (process_ != ::getpid()) return;
  if (!stats_path_.empty()) {
    if (const status ok = write_stats(stats_path_); !ok) log_line(ok.message());
  }
  const status done = each_recorder([](allocation_recorder& recorder, const pool& member) {
    return recorder.finish([&member] { return member.stats(); });
  });
  if (!done) log_line(done.message());
} catch (...) {
  log_if_possible([] { return "at exit: " + status::of_current_exception().message(); });
}

// Calls `does` for each recorder with its pool; returns the first error.
status pooled_allocator::each_recorder(const std::function<status(allocation_recorder&, const pool&)>& does) const {
  status first;
  for (const logical_pool& p : pools_) {
    for (const auto& r : p.recorders) {
      if (status ok = does(*r, *p.pool); !ok && first.ok()) first = std::move(ok);
    }
  }
  return first;
}

status pooled_allocator::flush_trace() {
  return without_exceptions([&]() -> status {
    const auto is_recorded = [](const logical_pool& slot) { return !slot.recorders.empty() || slot.history; };
    if (process_ != ::getpid() && std::ranges::any_of(pools_, is_recorded)) {
      return {errc::unsupported, "the trace cannot be written in a forked process, because its parent writes it"};
    }
    status first = each_recorder([](allocation_recorder& recorder, const pool&) { return recorder.flush(); });
    for (const logical_pool& p : pools_) {
      if (p.history == nullptr) continue;
      if (status written = p.history->write(*p.pool); !written && first.ok()) first = std::move(written);
    }
    return first;
  });
}

// Defaults for allocators that are not gpumem's.
namespace {
status not_offered() { return {errc::unsupported, "this allocator does not offer that"}; }
}  // namespace
result<std::uint64_t> allocator::open_region(int /*device*/, stream_ref /*stream*/) { return not_offered(); }
status allocator::close_region(int /*device*/, std::uint64_t /*region*/) { return not_offered(); }
result<std::vector<segment_view>> allocator::segments(int /*device*/) const { return not_offered(); }
result<piece_statistics> allocator::pieces(int /*device*/) const { return not_offered(); }
status allocator::reset_peak_reserved(int /*device*/) { return not_offered(); }
status allocator::enable_peer(int /*device*/, int /*physical_ordinal*/) { return not_offered(); }
status allocator::observe_segments(std::shared_ptr<segment_observer> /*observer*/) { return not_offered(); }

}  // namespace gpumem
