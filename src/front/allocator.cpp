// The allocator over its pools: checks requests, finds the pool, records the trace, refuses misuse.
//
// It needs no lock, because the list of pools is fixed at opening.
#include "gpumem/allocator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <sstream>

#include "behind_all_work.hpp"
#include "bits.hpp"
#include "captures.hpp"
#include "checked_mutex.hpp"
#include "exit_report.hpp"
#include "first_use.hpp"
#include "gpumem/cuda_device.hpp"
#include "hold_captures.hpp"
#include "log.hpp"
#include "logical_devices.hpp"
#include "oom_advice.hpp"
#include "pointers.hpp"
#include "pool.hpp"
#include "without_exceptions.hpp"
#include "written_file.hpp"

namespace gpumem {
namespace {

/// Arithmetic on larger sizes could overflow, so larger requests are checked first.
constexpr std::size_t most_hit_bytes = std::size_t{1} << 40;
/// The largest size that stays below 2^63 when rounded up.
constexpr std::size_t most_bytes = (std::size_t{1} << 63) - block_granularity;

std::string recording_of(const logical_pool& slot) {
  if (slot.history != nullptr) return slot.history->path();
  for (const auto& each : slot.recorders) {
    if (std::string path = each->recording(); !path.empty()) return path;
  }
  return {};
}

}  // namespace

class pooled_allocator final : public allocator {
 public:
  pooled_allocator() {
    static std::atomic<std::uint64_t> latest{0};
    number_ = ++latest;
  }
  ~pooled_allocator() override {
    forget_at_exit(this);
    report();
  }
  pooled_allocator(const pooled_allocator&) = delete;
  pooled_allocator& operator=(const pooled_allocator&) = delete;

  status start(std::span<device* const> devices, const settings& options) {
    if (devices.empty()) return {errc::bad_setting, "no device: expected at least one"};
    for (device* d : devices) {
      if (d == nullptr) return {errc::invalid_argument, "a device of those to open is null; expected a device"};
      const settings own = options.for_device(d->info().ordinal);
      result<std::vector<pool_config>> configs = logical_devices(*d, own, static_cast<int>(pools_.size()));
      if (!configs) return configs.why();
      for (pool_config& config : *configs) {
        if (status ok = add_pool(*d, std::move(config), own); !ok) return ok;
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
    if (options.verbose) describe_start(options);
    const bool recorded = std::ranges::any_of(pools_, [](const logical_pool& slot) { return !slot.recorders.empty(); });
    if (!stats_path_.empty() || recorded) remember_at_exit(this, [this] { report(); });
    return {};
  }

  result<void*> do_allocate(const request& request, oom_slot* refusal) override try {
    if (!exists(request.device)) return no_such_device(request.device);
    const logical_pool& slot = pools_[static_cast<std::size_t>(request.device)];
    pool& p = *slot.pool;
    if (request.alignment != block_granularity || request.bytes - 1 >= most_hit_bytes || request.place != 0) {
      if (status ok = sound(request, p.config().total_bytes); !ok) return ok;
    }
    if (slot.device->condition() != device_condition::usable) return usable(*slot.device);
    if (request.alignment == block_granularity && request.region == 0) {  // the fast path tried only the latest cache
      if (const address cached = p.try_cache(request.stream, request.bytes); cached != 0) return to_pointer(cached);
    }
    const bool asks = asks_for_captures(slot);
    if (asks || captures_.busy()) {
      if (status ok = captures_.follow(slot, request, asks); !ok) return ok;
    }
    address begin = 0;
    oom_slot recorded;
    oom_slot* const report = refusal == nullptr && !slot.recorders.empty() ? &recorded : refusal;
    if (status done = p.allocate(request, round_up(request.bytes, block_granularity), &begin, report); !done) {
      if (report != nullptr && *report != nullptr) {
        for (const auto& each : slot.recorders) each->refused(**report, request.stream);
      }
      if (slot.history != nullptr && done.code() == errc::out_of_memory) slot.history->refused(p);
      if (oom_advice_ && done.code() == errc::out_of_memory) start_oom_advice(recording_of(slot));
      return done;
    }
    if (untouched_.load(std::memory_order_relaxed)) preallocate(request.device);
    for (const auto& each : slot.recorders) each->allocated(begin, request.bytes, request.stream);
    return to_pointer(begin);
  } catch (...) {
    return status::of_current_exception();
  }

  status do_deallocate(void* pointer, const free_args& stated) override try {
    if (pointer == nullptr) return {};
    const address begin = to_address(pointer);
    if (stated.device) {
      if (status ok = not_of_others(begin, *stated.device); !ok) return ok;
    }
    if (pools_.size() > 1 || stated.stream) {
      for (const logical_pool& candidate : pools_) {
        if (candidate.pool->free_to_cache(begin, stated)) return {};
      }
    }
    bool owned = false;
    status freed = ask_pools(begin, [&](pool& candidate) {
      status done = candidate.release_block(begin, stated);
      owned = done.code() != errc::unknown_pointer;
      return done;
    });
    if (!owned) ++foreign_misuses_;
    return freed;
  } catch (...) {
    return status::of_current_exception();
  }

  status record_use(void* pointer, stream_ref stream) override {
    return without_exceptions([&] {
      return ask_pools(to_address(pointer), [&](pool& each) { return each.record_use(to_address(pointer), stream); });
    });
  }
  status stream_release(stream_ref stream) override {
    return without_exceptions([&] {
      return at_each_that_knows(pools_, stream, nullptr,
                                [](pool& member, std::uint64_t key) { return member.below().stream_release(key); });
    });
  }
  status capture_begin(stream_ref stream) override {
    return without_exceptions([&] { return captures_.begin(stream); });
  }
  result<graph_ref> capture_end(stream_ref stream) override {
    return without_exceptions([&] { return captures_.end(stream); });
  }
  status captures_ended(int physical_device) override { return end_captures(physical_device, false); }
  status reported_captures_ended(int physical_device) override { return end_captures(physical_device, true); }
  status graph_release(graph_ref graph) override {
    return without_exceptions([&] { return captures_.release(graph); });
  }

  result<std::uint64_t> open_region(int device, stream_ref stream) override {
    return with_pool<result<std::uint64_t>>(device, [stream](const logical_pool& slot) -> result<std::uint64_t> {
      const result<std::uint64_t> key = slot.pool->key_of(stream);
      if (!key) return key;
      return slot.pool->below().open_region(stream, *key);
    });
  }
  status close_region(int device, std::uint64_t region) override {
    return with_pool<status>(device,
                             [region](const logical_pool& slot) { return slot.pool->below().graph_release(region); });
  }
  result<std::vector<segment_view>> segments(int device) const override {
    return with_pool<result<std::vector<segment_view>>>(device,
                                                        [](const logical_pool& slot) { return slot.pool->segments(); });
  }
  result<piece_statistics> pieces(int device) const override {
    return of_pool<result<piece_statistics>>(device, [](const logical_pool& slot) { return slot.pool->pieces(); });
  }
  status reset_peak_reserved(int device) override {
    return with_pool<status>(device,
                             [](const logical_pool& slot) { return slot.pool->reset_peak_reserved(), status{}; });
  }
  status enable_peer(int device, int physical_ordinal) override {
    return with_pool<status>(device, [physical_ordinal](const logical_pool& slot) {
      return slot.device->info().page_bytes == 0 ? status{} : add_cuda_peer(*slot.device, physical_ordinal);
    });
  }

  status observe_segments(std::shared_ptr<segment_observer> observer) override {
    if (observer == nullptr) return {errc::invalid_argument, "the observer of segments is null; expected an observer"};
    return without_exceptions([&] {
      for (const logical_pool& p : pools_) p.pool->below().observers().add(observer);
      return status{};
    });
  }

  result<trim_result> trim(int device, std::uint64_t bytes) override {
    return with_pool<result<trim_result>>(device, [&](const logical_pool& slot) {
      if (captures_.busy()) captures_.settle(*slot.device);
      return slot.pool->trim(bytes);
    });
  }
  result<limit_result> set_limit(int device, std::uint64_t limit_bytes) override {
    return with_pool<result<limit_result>>(device, [&](const logical_pool& slot) -> result<limit_result> {
      if (status fits = set_limit_beside_others(slot, limit_bytes); !fits) return fits;
      if (captures_.busy()) captures_.settle(*slot.device);
      return slot.pool->keep_limit(limit_bytes);
    });
  }
  void on_out_of_memory(oom_callback callback) override {
    if (!callback) return;
    for (const logical_pool& p : pools_) p.pool->below().on_out_of_memory(callback);
  }

  const std::vector<logical_device>& devices() const noexcept override { return devices_; }
  result<statistics> stats(int device) const override {
    return of_pool<result<statistics>>(device, [&](const logical_pool& slot) {
      statistics s = slot.pool->stats();
      if (device == 0) s.misuses += foreign_misuses_.load(std::memory_order_relaxed);
      return s;
    });
  }
  result<block_info> describe(const void* pointer) const override {
    return without_exceptions([&]() -> result<block_info> {
      result<block_info> found = block_info{};
      const status known = ask_pools(to_address(pointer), [&](const pool& each) {
        found = each.describe(to_address(pointer));
        return found ? status{} : found.why();
      });
      return known ? found : known;
    });
  }
  status check(int device) const override {
    return of_pool<status>(device, [](const logical_pool& slot) { return slot.pool->check(); });
  }
  status flush_trace() override {
    return without_exceptions([&] {
      status first = each_recorder([](auto& recorder, const pool&) { return recorder.flush(); });
      for (const logical_pool& p : pools_) {
        if (p.history == nullptr) continue;
        if (status written = p.history->write(*p.pool); !written && first.ok()) first = std::move(written);
      }
      return first;
    });
  }
  [[nodiscard]] const std::vector<logical_pool>& pools() const noexcept { return pools_; }
  status stand_for_all_work(stream_ref all) {
    for (const logical_pool& p : pools_) {
      if (status ok = p.pool->below().stand_for_all_work(all); !ok) return ok;
    }
    return {};
  }
  bool free_behind_all_work(address begin) noexcept {
    return std::ranges::any_of(pools_,
                               [begin](const logical_pool& slot) { return slot.pool->free_behind_all_work(begin); });
  }
  captures& all_captures() noexcept { return captures_; }
  /// Runs once: opens each pool that takes everything, except that of device `used`, whose request opens it.
  void preallocate(int used) {
    if (!untouched_.exchange(false, std::memory_order_acq_rel)) return;
    for (const logical_pool& p : pools_) {
      const pool_config& config = p.pool->config();
      if (!p.takes_everything || config.ordinal == used) continue;
      status taken = usable(*p.device);
      if (taken.ok()) taken = without_exceptions([&] { return p.pool->open_ahead(); });
      if (!taken) {
        log_if_possible([&] {
          return fmt::format("pool {} ({}) is not taken yet: {}", config.name, config.policy_name, taken.message());
        });
      }
    }
  }

 private:
  status end_captures(int physical_device, bool reported_only) {
    return without_exceptions([&]() -> status {
      const auto slot = std::ranges::find(
          pools_, physical_device, [](const logical_pool& candidate) { return candidate.device->info().ordinal; });
      if (slot == pools_.end()) {
        return {errc::wrong_device, fmt::format("no pool of this allocator is on device {}", physical_device)};
      }
      if (!asks_for_captures(*slot)) return {};
      if (status ok = usable(*slot->device); !ok) return ok;
      captures_.ended_on(*slot->device, reported_only);
      return {};
    });
  }

  /// Returns the answer of the pool that knows the address. If none does, returns the refusal of the pool whose segment
  /// contains it, or of any pool.
  template <typename Call>
  status ask_pools(address begin, const Call& call) const {
    status refusal;
    for (const logical_pool& p : pools_) {
      status answer = usable(*p.device);
      const bool asked = answer.ok();
      if (asked) answer = call(*p.pool);
      if (asked && answer.code() != errc::unknown_pointer) return answer;
      if (!asked || refusal.ok() || p.pool->contains(begin)) refusal = std::move(answer);
    }
    return refusal;
  }

  /// Refuses a free that states another device than the block's.
  status not_of_others(address begin, int stated) {
    if (!exists(stated)) {
      ++foreign_misuses_;
      return no_such_device(stated);
    }
    for (const logical_pool& slot : pools_) {
      const pool_config& config = slot.pool->config();
      if (config.ordinal == stated || !slot.pool->describe(begin)) continue;
      slot.pool->count_misuse();
      return {errc::wrong_device,
              fmt::format("{:#x} belongs to pool {} and is freed on device {}", begin, config.name, stated)};
    }
    return {};
  }

  /// Refuses requests that a device of this size can never serve.
  static status sound(const request& request, std::uint64_t total_bytes) {
    std::string wrong;
    if (request.bytes == 0) {
      wrong = "0 bytes asked; expected at least 1";
    } else if (!is_power_of_two(request.alignment)) {
      wrong = fmt::format("alignment {}: expected a power of two", request.alignment);
    } else if (request.alignment > total_bytes) {
      wrong = fmt::format("alignment {}: larger than the device's {}", request.alignment, format_bytes(total_bytes));
    } else if (request.bytes > most_bytes) {
      wrong = fmt::format("{} bytes asked; expected less than 2^63", request.bytes);
    } else if (request.place % std::max<std::uint64_t>(request.alignment, block_granularity) != 0) {
      wrong = fmt::format("place {:#x}: expected a multiple of {}{}", request.place,
                          std::max<std::uint64_t>(request.alignment, block_granularity),
                          request.alignment > block_granularity ? ", the alignment asked" : "");
    }
    return wrong.empty() ? status{} : status{errc::invalid_argument, std::move(wrong)};
  }

  static bool asks_for_captures(const logical_pool& slot) {
    return slot.pool->config().stream_ids == stream_id_mode::query && slot.device->info().reports_captures;
  }

  /// `own` are the settings with the device's overrides.
  status add_pool(device& gpu, pool_config config, const settings& own) {
    config.allocator_number = number_;
    config.verbose = own.verbose;
    config.history_events = own.history_events;
    result<std::unique_ptr<history_file>> history = history_file::open(own, config.ordinal);
    if (!history) return history.why();
    const result<policy_entry> entry = find_policy(config.policy_name);
    if (!entry) return entry.why();
    result<recorder_list> recorders = open_recorders(own, *entry, config.ordinal);
    if (!recorders) return recorders.why();
    if (!recorders->empty()) {
      config.before_free = [first = recorders->data(), count = recorders->size()](address begin, std::uint64_t bytes,
                                                                                  stream_ref stream) {
        for (std::size_t i = 0; i < count; ++i) first[i]->freed(begin, bytes, stream);
      };
    }
    policy_parameters parameters = parameters_from_settings(*entry, own, config.policy_name);
    if (const std::string& instead = entry->needs.without_pages; !instead.empty() && gpu.info().page_bytes == 0) {
      log_line(fmt::format("pool {}: device {} ({}) cannot map pages, which policy {} needs; {} serves instead",
                           config.name, gpu.info().ordinal, gpu.info().name, config.policy_name, instead));
      config.policy_name = instead;
      parameters.clear();
    }
    if (entry->needs.plan.follows) {
      if (status ok = read_plan_of(config, own, *entry); !ok) return ok;
    }
    result<std::unique_ptr<policy>> policy =
        make_policy(config.policy_name, {.total_bytes = config.total_bytes,
                                         .free_at_start_bytes = config.free_at_start_bytes,
                                         .compute_major = gpu.info().compute_major,
                                         .granularity_bytes = gpu.info().granularity_bytes,
                                         .page_bytes = gpu.info().page_bytes,
                                         .parameters = std::move(parameters)});
    if (!policy) return policy.why();
    if (config.plan != nullptr) (*policy)->follow_plan(config.plan->height_bytes);
    devices_.push_back({.ordinal = config.ordinal,
                        .physical_ordinal = gpu.info().ordinal,
                        .name = config.name,
                        .policy = config.policy_name,
                        .limit_bytes = config.limit_bytes,
                        .gpu_name = gpu.info().name,
                        .gpu_uuid = gpu.info().uuid,
                        .gpu_total_bytes = gpu.info().total_bytes,
                        .compute_major = gpu.info().compute_major,
                        .compute_minor = gpu.info().compute_minor,
                        .simulated = gpu.info().simulated});
    pools_.push_back({.recorders = *std::move(recorders),  // the move keeps the addresses that `before_free` uses
                      .history = *std::move(history),
                      .pool = std::make_unique<pool>(gpu, std::move(config), *std::move(policy)),
                      .device = &gpu,
                      .takes_everything = entry->needs.everything});
    if (entry->needs.everything) untouched_ = true;
    return {};
  }

  void describe_start(const settings& options) const {
    std::istringstream lines{options.describe()};
    for (std::string line; std::getline(lines, line);) log_line(line);
    for (const logical_device& d : devices_) {
      log_line(fmt::format("pool {} is logical device {} on device {}: {}, at most {}", d.name, d.ordinal,
                           d.physical_ordinal, d.policy, format_bytes(d.limit_bytes)));
    }
  }

  // Checks the limit against those of the device's other pools and sets it, atomically with other calls of this.
  status set_limit_beside_others(const logical_pool& slot, std::uint64_t limit_bytes) {
    const mutex_lock lock{limits_mutex_};
    std::uint64_t other_limits = 0;
    for (const logical_pool& neighbour : pools_) {
      if (neighbour.pool != slot.pool && neighbour.device == slot.device)
        other_limits += neighbour.pool->below().pool_budget().limit();
    }
    const std::uint64_t total = slot.pool->config().total_bytes;
    if (limit_bytes == 0 || limit_bytes > total || other_limits > total - limit_bytes) {
      return {errc::bad_setting,
              fmt::format("limit {} for pool {}: expected more than 0 and at most {} ({} less the other pools' {})",
                          format_bytes(limit_bytes), slot.pool->config().name,
                          format_bytes(total > other_limits ? total - other_limits : 0), format_bytes(total),
                          format_bytes(other_limits))};
    }
    slot.pool->set_limit(limit_bytes);
    return {};
  }

  /// Calls `call` with the pool of a logical device. Fails if there is none, or in a forked child, where a lock of the
  /// pool may stay locked.
  template <typename Result, typename Call>
  Result of_pool(int device, const Call& call) const {
    return without_exceptions([&]() -> Result {
      if (!exists(device)) return no_such_device(device);
      const logical_pool& p = pools_[static_cast<std::size_t>(device)];
      return p.device->condition() == device_condition::forked ? Result{usable(*p.device)} : Result{call(p)};
    });
  }
  /// Like `of_pool`, but also requires a usable device.
  template <typename Result, typename Call>
  Result with_pool(int device, const Call& call) const {
    return of_pool<Result>(device, [&](const logical_pool& slot) -> Result {
      if (status ok = usable(*slot.device); !ok) return ok;
      return call(slot);
    });
  }

  [[nodiscard]] bool exists(int device) const noexcept {
    return device >= 0 && static_cast<std::size_t>(device) < pools_.size();
  }
  status no_such_device(int device) const {
    return {errc::wrong_device,
            fmt::format("device {} does not exist; expected 0 to {}", device, static_cast<int>(pools_.size()) - 1)};
  }

  status write_stats(const std::string& target) const {
    std::vector<statistics> figures;
    for (const logical_device& d : devices_) figures.push_back(*stats(d.ordinal));
    return write_statistics(target, devices_, figures);
  }

  void report() noexcept try {
    if (!pools_.empty() && pools_.front().device->condition() == device_condition::forked)
      return;  // the parent reports
    if (!stats_path_.empty()) {
      if (const status ok = write_stats(stats_path_); !ok) log_line(ok.message());
    }
    const status done = each_recorder(
        [](auto& recorder, pool& member) { return recorder.finish([&member] { return member.stats(); }); });
    if (!done) log_line(done.message());
  } catch (...) {
    log_if_possible([] { return "at exit: " + status::of_current_exception().message(); });
  }

  /// Calls `does` for each recorder with its pool; returns the first error.
  template <typename action>
  status each_recorder(action does) const {
    status first;
    for (const logical_pool& p : pools_) {
      for (const auto& r : p.recorders) {
        if (status ok = does(*r, *p.pool); !ok && first.ok()) first = std::move(ok);
      }
    }
    return first;
  }

  std::vector<logical_pool> pools_;  // by logical ordinal
  std::vector<logical_device> devices_;
  captures captures_{pools_};
  checked_mutex limits_mutex_;
  std::atomic<std::uint64_t> foreign_misuses_{0};  // frees of pointers that no pool knows
  std::string stats_path_;
  bool oom_advice_ = false;
  std::optional<written_file> stats_file_;  // keeps other processes from the path
  std::atomic<bool> untouched_{false};      // true until the first allocation, if a pool takes everything
};

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

status dump_pools(allocator& memory, const std::function<status(const pool&)>& each) {
  return without_exceptions([&]() -> status {
    for (const logical_pool& p : static_cast<pooled_allocator&>(memory).pools()) {
      if (p.device->condition() == device_condition::forked) continue;
      if (status done = each(*p.pool); !done) return done;
    }
    return {};
  });
}
status stand_for_all_work(allocator& memory, stream_ref all) {
  return without_exceptions([&] { return static_cast<pooled_allocator&>(memory).stand_for_all_work(all); });
}
bool free_behind_all_work(allocator& memory, void* pointer) noexcept {
  return static_cast<pooled_allocator&>(memory).free_behind_all_work(to_address(pointer));
}
status hold_capture(allocator& memory, std::uint64_t number) {
  return without_exceptions([&] {
    static_cast<pooled_allocator&>(memory).all_captures().hold(number);
    return status{};
  });
}
void end_held_capture(allocator& memory, std::uint64_t number) noexcept {
  static_cast<pooled_allocator&>(memory).all_captures().end_hold(number);
}
void preallocate_pools(allocator& memory) { static_cast<pooled_allocator&>(memory).preallocate(-1); }

result<std::unique_ptr<allocator>> allocator::open(std::span<device* const> devices, const settings& options) {
  return without_exceptions([&]() -> result<std::unique_ptr<allocator>> {
    auto made = std::make_unique<pooled_allocator>();
    if (status ok = made->start(devices, options); !ok) return ok;
    return std::unique_ptr<allocator>{std::move(made)};
  });
}

}  // namespace gpumem
