// The allocator over its pools: checks a request's form, finds the pool, keeps the trace, reports misuse.
//
// Holds no lock of its own: the list of pools is fixed when it is opened.
#include "gpumem/allocator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "bits.hpp"
#include "exit_report.hpp"
#include "log.hpp"
#include "logical_devices.hpp"
#include "pool.hpp"
#include "trace_recorder.hpp"

namespace gpumem {
namespace {

address to_address(const void* p) noexcept { return static_cast<address>(reinterpret_cast<std::uintptr_t>(p)); }
void* to_pointer(address a) noexcept { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(a)); }

/// `runs.csv.gz` for logical device 0, `runs.1.csv.gz` for device 1.
std::string trace_path_of(const std::string& path, int ordinal) {
  if (ordinal == 0) return path;
  const std::size_t name = path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/') + 1;
  const std::size_t dot = path.find('.', name + 1);
  return dot == std::string::npos ? fmt::format("{}.{}", path, ordinal)
                                  : fmt::format("{}.{}{}", path.substr(0, dot), ordinal, path.substr(dot));
}

class pooled_allocator final : public allocator {
 public:
  pooled_allocator() = default;
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
      // A path that cannot be written is refused now, not at exit.
      if (status ok = write_stats(with.stats_path); !ok) return ok;
    }
    stats_path_ = with.stats_path;
    if (with.verbose) describe_start(with);
    if (!stats_path_.empty() || !with.trace_path.empty()) remember_at_exit(this, [this] { report(); });
    return {};
  }

  result<void*> try_allocate(const request& r, oom_report* report) override {
    if (r.bytes == 0) return status{errc::invalid_argument, "0 bytes asked; expected at least 1"};
    if (!is_power_of_two(r.alignment)) {
      return status{errc::invalid_argument, fmt::format("alignment {}: expected a power of two", r.alignment)};
    }
    if (r.device < 0 || static_cast<std::size_t>(r.device) >= pools_.size()) return no_such_device(r.device);
    pool& p = *pools_[static_cast<std::size_t>(r.device)];
    if (r.alignment > p.config().total_bytes) {
      return status{errc::invalid_argument, fmt::format("alignment {}: larger than the device's {}", r.alignment,
                                                        format_bytes(p.config().total_bytes))};
    }
    const std::optional<std::uint64_t> rounded = checked_round_up(r.bytes, block_granularity);
    if (!rounded || *rounded > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return status{errc::invalid_argument, fmt::format("{} bytes asked; expected less than 2^63", r.bytes)};
    }
    const result<address> at = p.allocate(r, *rounded, report);
    if (!at) return at.why();
    if (!recorders_.empty()) recorders_[static_cast<std::size_t>(r.device)]->allocated(*at, r.bytes, r.stream);
    return to_pointer(*at);
  }

  status try_deallocate(void* p, const release& stated) override {
    if (p == nullptr) return {};
    const address at = to_address(p);
    if (stated.device) {
      const int d = *stated.device;
      if (d < 0 || static_cast<std::size_t>(d) >= pools_.size()) {
        ++foreign_misuses_;
        return no_such_device(d);
      }
      for (const auto& other : pools_) {
        if (other->config().ordinal == d || !other->describe(at)) continue;
        other->count_misuse();
        return {errc::wrong_device,
                fmt::format("{:#x} belongs to pool {} and is freed on device {}", at, other->config().name, d)};
      }
    }
    status unknown;
    for (const auto& candidate : pools_) {
      status freed = candidate->release_block(at, stated);
      if (freed.ok() || freed.code() != errc::unknown_pointer) return freed;
      if (unknown.ok() || candidate->contains(at)) unknown = std::move(freed);
    }
    ++foreign_misuses_;
    return unknown;
  }

  status record_use(void* p, stream_ref s) override {
    status unknown;
    for (const auto& candidate : pools_) {
      status noted = candidate->record_use(to_address(p), s);
      if (noted.ok() || noted.code() != errc::unknown_pointer) return noted;
      unknown = std::move(noted);
    }
    return unknown;
  }

  status stream_release(stream_ref s) override {
    return where_known(s, [](pool& p, std::uint64_t key) { return p.stream_release(key); });
  }
  status capture_begin(stream_ref s) override {
    std::vector<std::pair<pool*, std::uint64_t>> begun;
    status ok = where_known(s, [s, &begun](pool& p, std::uint64_t key) {
      status one = p.capture_begin(s, key);
      if (one.ok()) begun.emplace_back(&p, key);
      return one;
    });
    if (!ok) {
      // Every pool captures, or none: what has begun ends, and its empty graph with it.
      for (const auto& [p, key] : begun) {
        if (const result<std::uint64_t> graph = p->capture_end(key)) static_cast<void>(p->graph_release(*graph));
      }
    }
    return ok;
  }
  result<graph_ref> capture_end(stream_ref s) override {
    std::vector<graph_part> parts;
    const status ok = where_known(s, [&parts](pool& p, std::uint64_t key) {
      const result<std::uint64_t> part = p.capture_end(key);
      if (part) parts.push_back({&p, *part});
      return part.why();
    });
    if (!ok) return ok;
    const std::lock_guard lock{graphs_mutex_};
    graphs_.push_back(std::move(parts));
    return graph_ref{graphs_.size()};
  }
  status graph_release(graph_ref g) override {
    std::vector<graph_part> parts;
    {
      const std::lock_guard lock{graphs_mutex_};
      if (g.id == 0 || g.id > graphs_.size() || graphs_[g.id - 1].empty()) {
        return {errc::invalid_argument, fmt::format("graph {} is unknown or was released already", g.id)};
      }
      parts.swap(graphs_[g.id - 1]);
    }
    status first;
    for (const graph_part& part : parts) {
      if (status ok = part.in->graph_release(part.number); !ok && first.ok()) first = std::move(ok);
    }
    return first;
  }

  trim_result trim(int device, std::uint64_t bytes) override {
    if (device < 0 || static_cast<std::size_t>(device) >= pools_.size()) return {};
    return pools_[static_cast<std::size_t>(device)]->trim(bytes);
  }
  result<limit_result> set_limit(int device, std::uint64_t limit_bytes) override {
    if (device < 0 || static_cast<std::size_t>(device) >= pools_.size()) return no_such_device(device);
    pool& p = *pools_[static_cast<std::size_t>(device)];
    std::uint64_t others = 0;
    for (const auto& other : pools_) {
      if (other.get() != &p &&
          physical_[static_cast<std::size_t>(other->config().ordinal)] == physical_[static_cast<std::size_t>(device)]) {
        others += other->limit();
      }
    }
    const std::uint64_t total = p.config().total_bytes;
    if (limit_bytes == 0 || limit_bytes > total || others > total - limit_bytes) {
      return status{
          errc::bad_setting,
          fmt::format("limit {} for pool {}: expected more than 0 and at most {} ({} less the other pools' {})",
                      format_bytes(limit_bytes), p.config().name, format_bytes(total > others ? total - others : 0),
                      format_bytes(total), format_bytes(others))};
    }
    const limit_result out = p.set_limit(limit_bytes);
    return out;
  }
  void on_out_of_memory(oom_callback callback) override {
    for (const auto& p : pools_) p->on_out_of_memory(callback);
  }

  const std::vector<logical_device>& devices() const noexcept override { return devices_; }
  result<statistics> stats(int device) const override {
    if (device < 0 || static_cast<std::size_t>(device) >= pools_.size()) return no_such_device(device);
    statistics s = pools_[static_cast<std::size_t>(device)]->stats();
    if (device == 0) s.misuses += foreign_misuses_.load(std::memory_order_relaxed);
    return s;
  }
  result<block_info> describe(const void* p) const override {
    status unknown;
    for (const auto& candidate : pools_) {
      result<block_info> found = candidate->describe(to_address(p));
      if (found) return found;
      unknown = found.why();
    }
    return unknown;
  }
  status check(int device) const override {
    if (device < 0 || static_cast<std::size_t>(device) >= pools_.size()) return no_such_device(device);
    return pools_[static_cast<std::size_t>(device)]->check();
  }
  status flush_trace() override {
    status first;
    for (const auto& r : recorders_) {
      if (status ok = r->flush(); !ok && first.ok()) first = std::move(ok);
    }
    return first;
  }

 private:
  /// A capture is one graph in every pool of the stream's device.
  struct graph_part {
    pool* in;
    std::uint64_t number;
  };

  status add_pool(device& on, pool_config config, const settings& with) {
    if (with.verbose) config.say = [](const std::string& line) { log_line(line); };
    if (!with.trace_path.empty()) {
      result<std::unique_ptr<trace_recorder>> opened =
          trace_recorder::open(trace_path_of(with.trace_path, config.ordinal));
      if (!opened) return opened.why();
      trace_recorder* const recorder = opened->get();
      config.before_free = [recorder](address at, std::uint64_t bytes, stream_ref s) { recorder->freed(at, bytes, s); };
      recorders_.push_back(*std::move(opened));
    }
    result<std::unique_ptr<policy>> decides =
        make_policy(config.policy_name, {.total_bytes = config.total_bytes,
                                         .free_at_start_bytes = config.free_at_start_bytes,
                                         .compute_major = on.info().compute_major,
                                         .granularity_bytes = on.info().granularity_bytes});
    if (!decides) return decides.why();
    devices_.push_back({.ordinal = config.ordinal,
                        .physical_ordinal = on.info().ordinal,
                        .name = config.name,
                        .policy = config.policy_name,
                        .limit_bytes = config.limit_bytes});
    physical_.push_back(&on);
    pools_.push_back(std::make_unique<pool>(on, std::move(config), *std::move(decides)));
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

  status no_such_device(int device) const {
    return {errc::wrong_device,
            fmt::format("device {} does not exist; expected 0 to {}", device, static_cast<int>(pools_.size()) - 1)};
  }

  /// Calls each pool of every device that knows the stream, until one fails. Fails, too, when no device knows it.
  template <typename Call>
  status where_known(stream_ref s, Call call) {
    status unknown;
    bool known = false;
    const device* on = nullptr;
    result<std::uint64_t> key{std::uint64_t{0}};
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      if (physical_[i] != on) {  // a device's pools stand side by side
        on = physical_[i];
        key = pools_[i]->key_of(s);
        if (!key) unknown = key.why();
      }
      if (!key) continue;
      known = true;
      if (status one = call(*pools_[i], *key); !one) return one;
    }
    return known ? status{} : unknown;
  }

  status write_stats(const std::string& target) const {
    std::vector<statistics> figures;
    for (const logical_device& d : devices_) figures.push_back(*stats(d.ordinal));
    return write_statistics(target, devices_, figures);
  }

  void report() {
    if (!stats_path_.empty()) {
      if (const status ok = write_stats(stats_path_); !ok) log_line(ok.message());
    }
    if (const status ok = flush_trace(); !ok) log_line(ok.message());
  }

  std::vector<std::unique_ptr<trace_recorder>> recorders_;  // one a pool, or none; outlive the pools
  std::vector<std::unique_ptr<pool>> pools_;                // by logical ordinal
  std::vector<logical_device> devices_;
  std::vector<const device*> physical_;
  std::atomic<std::uint64_t> foreign_misuses_{0};  // frees of what no pool knows
  std::string stats_path_;
  std::mutex graphs_mutex_;
  std::vector<std::vector<graph_part>> graphs_;  // by graph_ref::id - 1; empty once released
};

}  // namespace

result<std::unique_ptr<allocator>> allocator::open(std::span<device* const> devices, const settings& with) {
  auto made = std::make_unique<pooled_allocator>();
  if (status ok = made->start(devices, with); !ok) return ok;
  return std::unique_ptr<allocator>{std::move(made)};
}

void* allocator::allocate(const request& r) {
  oom_report report;
  result<void*> p = try_allocate(r, &report);
  if (p) return *p;
  if (p.code() == errc::out_of_memory) throw out_of_memory{std::move(report)};
  throw bad_request{p.why()};
}

void allocator::deallocate(void* p, const release& stated) noexcept {
  if (const status freed = try_deallocate(p, stated); !freed) log_line("refused free: " + freed.message());
}

}  // namespace gpumem
