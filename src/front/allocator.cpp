// The allocator over its pools: checks requests, finds the pool, records the trace, refuses misuse.
//
// It needs no lock, because the list of pools is fixed at opening.
#include "gpumem/allocator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "behind_all_work.hpp"
#include "bits.hpp"
#include "captures.hpp"
#include "exit_report.hpp"
#include "first_use.hpp"
#include "gpumem/cuda_device.hpp"
#include "log.hpp"
#include "logical_devices.hpp"
#include "pointers.hpp"
#include "pool.hpp"
#include "recorders.hpp"
#include "without_exceptions.hpp"

namespace gpumem {
namespace {

/// Arithmetic on larger sizes could overflow, so larger requests are checked first.
constexpr std::size_t most_hit_bytes = std::size_t{1} << 40;

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

  status start(std::span<device* const> devices, const settings& with) {
    if (devices.empty()) return {errc::bad_setting, "no device: expected at least one"};
    for (device* d : devices) {
      const settings own = with.for_device(d->info().ordinal);
      result<std::vector<pool_config>> configs = logical_devices(*d, own, static_cast<int>(pools_.size()));
      if (!configs) return configs.why();
      for (pool_config& config : *configs) {
        if (status ok = add_pool(*d, std::move(config), with); !ok) return ok;
      }
    }
    if (!with.stats_path.empty() && with.stats_path != "exit") {
      // Refuses a path that cannot be written now, not at exit.
      if (status ok = write_stats(with.stats_path); !ok) return ok;
    }
    stats_path_ = with.stats_path;
    log_settings_without_effect(devices, with);
    if (with.verbose) describe_start(with);
    const bool recorded = std::any_of(recorders_.begin(), recorders_.end(), [](const auto& of) { return !of.empty(); });
    if (!stats_path_.empty() || recorded) remember_at_exit(this, [this] { report(); });
    return {};
  }

  result<void*> do_allocate(const request& r, oom_slot* refusal) override try {
    const bool ordinary = r.alignment == block_granularity && r.bytes - 1 < most_hit_bytes;
    if (!ordinary) {
      if (status ok = sound(r); !ok) return ok;
    }
    if (!exists(r.device)) return no_such_device(r.device);
    pool& p = *pools_[static_cast<std::size_t>(r.device)].it;
    device& on = *pools_[static_cast<std::size_t>(r.device)].on;
    if (on.condition() != device_condition::usable) return usable(on);
    if (!ordinary) {
      if (status ok = fits_device(r, p.config().total_bytes); !ok) return ok;
    }
    if (r.alignment == block_granularity && r.region == 0) {  // of another pool or stream than the last one
      if (const address at = p.try_cache(r.stream, r.bytes); at != 0) return to_pointer(at);
    }
    const bool asks = asks_for_captures(p.config(), on);
    if (asks || captures_.busy()) {
      if (status ok = captures_.follow(on, r.stream, asks); !ok) return ok;
    }
    address at = 0;
    if (status done = p.allocate(r, round_up(r.bytes, block_granularity), &at, refusal); !done) return done;
    if (untouched_.load(std::memory_order_relaxed)) preallocate(r.device);
    for (const auto& each : recorders_[static_cast<std::size_t>(r.device)]) each->allocated(at, r.bytes, r.stream);
    return to_pointer(at);
  } catch (...) {
    return status::of_current_exception();
  }

  status do_deallocate(void* p, const free_args& stated) override try {
    if (p == nullptr) return {};
    const address at = to_address(p);
    if (stated.device) {
      const int d = *stated.device;
      if (!exists(d)) {
        ++foreign_misuses_;
        return no_such_device(d);
      }
      for (const pool_slot& other : pools_) {
        if (other.it->config().ordinal == d || !other.it->describe(at)) continue;
        other.it->count_misuse();
        return {errc::wrong_device,
                fmt::format("{:#x} belongs to pool {} and is freed on device {}", at, other.it->config().name, d)};
      }
    }
    if (pools_.size() > 1) {
      for (const pool_slot& candidate : pools_) {
        if (candidate.it->free_to_cache(at, stated)) return {};
      }
    }
    status unknown;
    for (const pool_slot& candidate : pools_) {
      if (candidate.on->condition() != device_condition::usable) [[unlikely]] {
        unknown = usable(*candidate.on);
        continue;
      }
      status freed = candidate.it->release_block(at, stated);
      if (freed.ok() || freed.code() != errc::unknown_pointer) return freed;
      if (unknown.ok() || candidate.it->contains(at)) unknown = std::move(freed);
    }
    ++foreign_misuses_;
    return unknown;
  } catch (...) {
    return status::of_current_exception();
  }

  status record_use(void* p, stream_ref s) override try {
    status unknown;
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      if (status ok = usable(*pools_[i].on); !ok) {
        unknown = std::move(ok);
        continue;
      }
      status noted = pools_[i].it->record_use(to_address(p), s);
      if (noted.ok() || noted.code() != errc::unknown_pointer) return noted;
      unknown = std::move(noted);
    }
    return unknown;
  } catch (...) {
    return status::of_current_exception();
  }

  status stream_release(stream_ref s) override try {
    return at_each_that_knows(pools_, s, nullptr,
                              [](pool& p, std::uint64_t key) { return p.below().stream_release(key); });
  } catch (...) {
    return status::of_current_exception();
  }
  status capture_begin(stream_ref s) override {
    return without_exceptions([&] { return captures_.begin(s); });
  }
  result<graph_ref> capture_end(stream_ref s) override {
    return without_exceptions([&] { return captures_.end(s); });
  }
  status captures_ended(int physical_device) override {
    return without_exceptions([&]() -> status {
      bool known = false;
      for (const pool_slot& p : pools_) {
        device& on = *p.on;
        if (on.info().ordinal != physical_device) continue;
        known = true;
        if (!asks_for_captures(p.it->config(), on)) continue;
        if (status ok = usable(on); !ok) return ok;
        captures_.ended_on(on);
        break;
      }
      if (known) return {};
      return {errc::wrong_device, fmt::format("no pool of this allocator is on device {}", physical_device)};
    });
  }
  status graph_release(graph_ref g) override {
    return without_exceptions([&] { return captures_.release(g); });
  }

  result<std::uint64_t> open_region(int device, stream_ref s) override {
    return with_pool<result<std::uint64_t>>(device, [s](const pool_slot& p) -> result<std::uint64_t> {
      const result<std::uint64_t> key = p.it->key_of(s);
      return key ? p.it->below().open_region(s, *key) : key;
    });
  }
  status close_region(int device, std::uint64_t region) override {
    return with_pool<status>(device, [region](const pool_slot& p) { return p.it->below().graph_release(region); });
  }
  result<std::vector<segment_view>> segments(int device) const override {
    return with_pool<result<std::vector<segment_view>>>(device, [](const pool_slot& p) { return p.it->segments(); });
  }
  status reset_peak_reserved(int device) override {
    return with_pool<status>(device, [](const pool_slot& p) { return p.it->reset_peak_reserved(), status{}; });
  }
  status enable_peer(int device, int physical_ordinal) override {
    return with_pool<status>(device, [physical_ordinal](const pool_slot& p) {
      return p.on->info().page_bytes == 0 ? status{} : add_cuda_peer(*p.on, physical_ordinal);
    });
  }

  result<trim_result> trim(int device, std::uint64_t bytes) override {
    return with_pool<result<trim_result>>(device, [bytes](const pool_slot& p) { return p.it->trim(bytes); });
  }
  result<limit_result> set_limit(int device, std::uint64_t limit_bytes) override {
    return with_pool<result<limit_result>>(device, [&](const pool_slot& p) -> result<limit_result> {
      std::uint64_t others = 0;
      for (const pool_slot& other : pools_) {
        if (other.it != p.it && other.on == p.on) others += other.it->below().cap().limit();
      }
      const std::uint64_t total = p.it->config().total_bytes;
      if (limit_bytes == 0 || limit_bytes > total || others > total - limit_bytes) {
        return status{
            errc::bad_setting,
            fmt::format("limit {} for pool {}: expected more than 0 and at most {} ({} less the other pools' {})",
                        format_bytes(limit_bytes), p.it->config().name,
                        format_bytes(total > others ? total - others : 0), format_bytes(total), format_bytes(others))};
      }
      return p.it->set_limit(limit_bytes);
    });
  }
  void on_out_of_memory(oom_callback callback) override {
    for (const pool_slot& p : pools_) p.it->below().on_out_of_memory(callback);
  }

  const std::vector<logical_device>& devices() const noexcept override { return devices_; }
  result<statistics> stats(int device) const override {
    return of_pool<result<statistics>>(device, [&](const pool_slot& p) {
      statistics s = p.it->stats();
      if (device == 0) s.misuses += foreign_misuses_.load(std::memory_order_relaxed);
      return s;
    });
  }
  result<block_info> describe(const void* p) const override try {
    status unknown;
    for (const pool_slot& candidate : pools_) {
      if (forked(candidate.it->config().ordinal)) return usable(*pools_.front().on);
      result<block_info> found = candidate.it->describe(to_address(p));
      if (found) return found;
      unknown = found.why();
    }
    return unknown;
  } catch (...) {
    return status::of_current_exception();
  }
  status check(int device) const override {
    return of_pool<status>(device, [](const pool_slot& p) { return p.it->check(); });
  }
  status flush_trace() override try {
    return each_recorder([](allocation_recorder& r, std::size_t) { return r.flush(); });
  } catch (...) {
    return status::of_current_exception();
  }
  status stand_for_all_work(stream_ref all) {
    for (const pool_slot& p : pools_) {
      if (status ok = p.it->below().stand_for_all_work(all); !ok) return ok;
    }
    return {};
  }
  bool free_behind_all_work(address at) noexcept {
    return std::ranges::any_of(pools_, [at](const pool_slot& p) { return p.it->free_behind_all_work(at); });
  }
  /// Runs once: each pool that takes everything does so, except that of `used`, whose own request opens it.
  void preallocate(int used) {
    if (!untouched_.exchange(false, std::memory_order_acq_rel)) return;
    for (const std::size_t i : taking_everything_) {
      const pool_config& of = pools_[i].it->config();
      if (of.ordinal == used) continue;
      status taken = usable(*pools_[i].on);
      if (taken.ok()) taken = without_exceptions([&] { return pools_[i].it->open_ahead(); });
      if (!taken) {
        log_if_possible(
            [&] { return fmt::format("pool {} ({}) is not taken yet: {}", of.name, of.policy_name, taken.message()); });
      }
    }
  }

 private:
  [[nodiscard]] bool forked(int logical) const {
    return pools_[static_cast<std::size_t>(logical)].on->condition() == device_condition::forked;
  }

  /// Refuses requests that no device can serve.
  static status sound(const request& r) {
    if (r.bytes == 0) return {errc::invalid_argument, "0 bytes asked; expected at least 1"};
    if (is_power_of_two(r.alignment)) return {};
    return {errc::invalid_argument, fmt::format("alignment {}: expected a power of two", r.alignment)};
  }
  static status fits_device(const request& r, std::uint64_t total_bytes) {
    if (r.alignment > total_bytes) {
      return {errc::invalid_argument,
              fmt::format("alignment {}: larger than the device's {}", r.alignment, format_bytes(total_bytes))};
    }
    const std::optional<std::uint64_t> rounded = checked_round_up(r.bytes, block_granularity);
    if (rounded && *rounded <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
    return {errc::invalid_argument, fmt::format("{} bytes asked; expected less than 2^63", r.bytes)};
  }

  static bool asks_for_captures(const pool_config& config, const device& on) {
    return config.stream_ids == stream_id_mode::query && on.info().reports_captures;
  }

  status add_pool(device& on, pool_config config, const settings& with) {
    config.allocator_number = number_;
    config.verbose = with.verbose;
    const settings own = with.for_device(on.info().ordinal);
    const result<policy_entry> entry = find_policy(config.policy_name);
    if (!entry) return entry.why();
    result<recorder_list> recorders = open_recorders(own, *entry, config.ordinal);
    if (!recorders) return recorders.why();
    if (!recorders->empty()) {
      config.before_free = [first = recorders->data(), count = recorders->size()](address at, std::uint64_t bytes,
                                                                                  stream_ref s) {
        for (std::size_t i = 0; i < count; ++i) first[i]->freed(at, bytes, s);
      };
    }
    recorders_.push_back(*std::move(recorders));  // the pool keeps a view of the recorders, whose address is stable
    policy_parameters parameters = parameters_from_settings(*entry, own, config.policy_name);
    if (const std::string& instead = entry->needs.without_pages; !instead.empty() && on.info().page_bytes == 0) {
      log_line(fmt::format("pool {}: device {} ({}) cannot map pages, which policy {} needs; {} serves instead",
                           config.name, on.info().ordinal, on.info().name, config.policy_name, instead));
      config.policy_name = instead;
      parameters.clear();
    }
    if (entry->needs.plan.follows) {
      if (status ok = read_plan_of(config, own, *entry); !ok) return ok;
    }
    result<std::unique_ptr<policy>> decides =
        make_policy(config.policy_name, {.total_bytes = config.total_bytes,
                                         .free_at_start_bytes = config.free_at_start_bytes,
                                         .compute_major = on.info().compute_major,
                                         .granularity_bytes = on.info().granularity_bytes,
                                         .page_bytes = on.info().page_bytes,
                                         .parameters = std::move(parameters)});
    if (!decides) return decides.why();
    if (config.plan != nullptr) (*decides)->follow_plan(config.plan->height_bytes);
    devices_.push_back({.ordinal = config.ordinal,
                        .physical_ordinal = on.info().ordinal,
                        .name = config.name,
                        .policy = config.policy_name,
                        .limit_bytes = config.limit_bytes,
                        .gpu_name = on.info().name,
                        .gpu_uuid = on.info().uuid,
                        .gpu_total_bytes = on.info().total_bytes,
                        .compute_major = on.info().compute_major,
                        .compute_minor = on.info().compute_minor,
                        .simulated = on.info().simulated});
    if (entry->needs.everything) {
      taking_everything_.push_back(pools_.size());
      untouched_ = true;
    }
    pools_.push_back({std::make_unique<pool>(on, std::move(config), *std::move(decides)), &on});
    return {};
  }

  void describe_start(const settings& with) const {
    const std::string text = with.describe();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      if (end > at) log_line(std::string_view{text}.substr(at, end - at));
      at = end + 1;
    }
    for (const logical_device& d : devices_) {
      log_line(fmt::format("pool {} is logical device {} on device {}: {}, at most {}", d.name, d.ordinal,
                           d.physical_ordinal, d.policy, format_bytes(d.limit_bytes)));
    }
  }

  /// Calls `call` with the pool of a logical device, if it exists and its locks are not those of a forked parent.
  template <typename Result, typename Call>
  Result of_pool(int device, const Call& call) const {
    return without_exceptions([&]() -> Result {
      if (!exists(device)) return no_such_device(device);
      if (forked(device)) return usable(*pools_[static_cast<std::size_t>(device)].on);
      return call(pools_[static_cast<std::size_t>(device)]);
    });
  }
  /// And if the device is usable.
  template <typename Result, typename Call>
  Result with_pool(int device, const Call& call) const {
    return of_pool<Result>(device, [&](const pool_slot& p) -> Result {
      if (status ok = usable(*p.on); !ok) return ok;
      return call(p);
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
    if (!pools_.empty() && forked(0)) return;  // the parent writes the reports
    if (!stats_path_.empty()) {
      if (const status ok = write_stats(stats_path_); !ok) log_line(ok.message());
    }
    const status done = each_recorder([this](allocation_recorder& r, std::size_t of) {
      // A device whose pool did not open has no recorders.
      return r.finish([&] { return of < pools_.size() ? pools_[of].it->stats() : statistics{}; });
    });
    if (!done) log_line(done.message());
  } catch (...) {
    log_if_possible([] { return "at exit: " + status::of_current_exception().message(); });
  }

  /// Calls `does` for each recorder with the index of its pool; returns the first error.
  template <typename action>
  status each_recorder(action does) const {
    status first;
    for (std::size_t i = 0; i < recorders_.size(); ++i) {
      for (const auto& r : recorders_[i]) {
        if (status ok = does(*r, i); !ok && first.ok()) first = std::move(ok);
      }
    }
    return first;
  }

  std::vector<recorder_list> recorders_;  // by pool; must outlive the pools
  std::vector<pool_slot> pools_;          // by logical ordinal
  std::vector<logical_device> devices_;
  captures captures_{pools_};
  std::atomic<std::uint64_t> foreign_misuses_{0};  // frees of pointers that no pool knows
  std::string stats_path_;
  std::vector<std::size_t> taking_everything_;  // indexes into pools_
  std::atomic<bool> untouched_{false};          // true until the first allocation, if taking_everything_ is not empty
};

// Defaults for allocators that are not gpumem's.
namespace {
status not_offered() { return {errc::unsupported, "this allocator does not offer that"}; }
}  // namespace
result<std::uint64_t> allocator::open_region(int /*device*/, stream_ref /*s*/) { return not_offered(); }
status allocator::close_region(int /*device*/, std::uint64_t /*region*/) { return not_offered(); }
result<std::vector<segment_view>> allocator::segments(int /*device*/) const { return not_offered(); }
status allocator::reset_peak_reserved(int /*device*/) { return not_offered(); }
status allocator::enable_peer(int /*device*/, int /*physical_ordinal*/) { return not_offered(); }

status stand_for_all_work(allocator& of, stream_ref all) {
  return without_exceptions([&] { return static_cast<pooled_allocator&>(of).stand_for_all_work(all); });
}
bool free_behind_all_work(allocator& of, void* p) noexcept {
  return static_cast<pooled_allocator&>(of).free_behind_all_work(to_address(p));
}
void preallocate_pools(allocator& of) { static_cast<pooled_allocator&>(of).preallocate(-1); }

result<std::unique_ptr<allocator>> allocator::open(std::span<device* const> devices, const settings& with) {
  return without_exceptions([&]() -> result<std::unique_ptr<allocator>> {
    auto made = std::make_unique<pooled_allocator>();
    if (status ok = made->start(devices, with); !ok) return ok;
    return std::unique_ptr<allocator>{std::move(made)};
  });
}

}  // namespace gpumem
