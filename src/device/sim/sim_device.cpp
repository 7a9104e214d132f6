// The simulated device: one lock around memory, streams and referee, with faults and costs at the edge.
//
// Each device call locks, fails if a fault is injected, charges its fixed cost, does its work, and on success charges
// for further pages. An injected failure changes nothing, not even the clock.
#include "gpumem/sim_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checked_mutex.hpp"
#include "referee.hpp"
#include "sim_memory.hpp"
#include "sim_streams.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t cost_page_bytes = std::uint64_t{2} << 20;
constexpr std::uint64_t least_granularity_bytes = 512;

/// Corrects the configuration's sizes: the granularity becomes a nonzero multiple of 512.
sim_config usable(sim_config config) {
  const std::uint64_t units = (config.granularity_bytes + least_granularity_bytes - 1) / least_granularity_bytes;
  config.granularity_bytes = std::max<std::uint64_t>(units, 1) * least_granularity_bytes;
  return config;
}

device_info describe(const sim_config& config) {
  return {.ordinal = config.ordinal,
          .name = config.name,
          .uuid = fmt::format("GPU-00000000-0000-0000-0000-{:012}", config.ordinal),
          .total_bytes = config.capacity_bytes,
          .granularity_bytes = config.granularity_bytes,
          .page_bytes = config.page_bytes,
          .compute_major = config.compute_major,
          .compute_minor = config.compute_minor,
          .simulated = true};
}

}  // namespace

struct sim_device::state {
  explicit state(const sim_config& config)
      : info{describe(config)},
        costs{config.costs},
        referee_on{config.referee},
        memory{config},
        streams{config.queue_depth} {}

  /// Makes one device call: returns an injected fault, or charges the fixed cost and runs `body`.
  template <typename Body>
  auto call(device_call kind, Body&& body) -> decltype(body()) {
    const mutex_lock lock{mutex};
    if (!faults.empty()) {
      if (status fault = due_fault(kind); !fault) return fault;
    }
    streams.charge(costs[static_cast<std::size_t>(kind)].fixed_ns);
    return body();
  }

  /// As `call`, and charges for the pages after the first if `body` succeeds.
  template <typename Body>
  auto call_on_pages(device_call kind, std::uint64_t bytes, Body&& body) -> decltype(body()) {
    return call(kind, [&] {
      auto outcome = body();
      if (outcome.ok()) pay_for_pages(kind, bytes);
      return outcome;
    });
  }

  void pay_for_pages(device_call kind, std::uint64_t bytes) {
    const std::uint64_t further_pages = (bytes + cost_page_bytes - 1) / cost_page_bytes - 1;
    streams.charge(costs[static_cast<std::size_t>(kind)].per_page_ns * further_pages);
  }

  /// Implements `free` and `free_host`: refuses during a capture, and waits for all work in flight.
  template <typename Release>
  status release(device_call kind, address segment, Release&& release_segment) {
    return call(kind, [&]() -> status {
      if (status refused = streams.refuse_while_capturing(kind); !refused) return refused;
      const result<std::uint64_t> bytes = release_segment();
      if (!bytes) return bytes.why();
      streams.wait_for_all();
      pay_for_pages(kind, *bytes);
      if (referee_on) judge.taken_away(segment, *bytes);
      return {};
    });
  }

  /// Counts the call against every injected fault of its kind; returns the first one that is due.
  status due_fault(device_call kind) GPUMEM_REQUIRES(mutex) {
    status due;
    for (planted_fault& fault : faults) {
      if (fault.call != kind || --fault.calls_left != 0 || !due) continue;
      due = status{fault.code, fmt::format("injected: {} call fails ({})", to_string(kind), to_string(fault.code))};
    }
    std::erase_if(faults, [](const planted_fault& fault) { return fault.calls_left == 0; });
    return due;
  }

  /// Locks the device for the call that follows: `locked(streams)->now_ns()`.
  template <typename Part>
  struct locked_part {
    std::unique_lock<checked_mutex> lock;
    Part* part;
    Part* operator->() const noexcept { return part; }
  };
  template <typename Part>
  locked_part<Part> locked(Part& part) {
    return {std::unique_lock<checked_mutex>{mutex}, &part};
  }

  const device_info info;
  const cost_table costs;
  const bool referee_on;
  mutable checked_mutex mutex;  ///< guards everything below
  sim_memory memory;
  sim_streams streams;
  referee judge{memory, streams};
  struct planted_fault {
    device_call call;
    std::uint64_t calls_left;
    errc code;
  };
  std::vector<planted_fault> faults GPUMEM_GUARDED_BY(mutex);
};

sim_device::sim_device(sim_config config) : state_{std::make_unique<state>(usable(std::move(config)))} {}
sim_device::~sim_device() = default;

const device_info& sim_device::info() const noexcept { return state_->info; }

// --- memory --------------------------------------------------------------------------------------------------

result<address> sim_device::do_alloc(std::uint64_t bytes) {
  return state_->call_on_pages(device_call::alloc, bytes, [&] { return state_->memory.alloc(bytes); });
}

status sim_device::do_free(address segment) {
  return state_->release(device_call::free, segment, [&] { return state_->memory.free(segment); });
}

result<address> sim_device::do_alloc_host(std::uint64_t bytes) {
  return state_->call_on_pages(device_call::alloc_host, bytes, [&] { return state_->memory.alloc_host(bytes); });
}

status sim_device::do_free_host(address segment) {
  return state_->release(device_call::free_host, segment, [&] { return state_->memory.free_host(segment); });
}

result<address> sim_device::do_reserve(std::uint64_t bytes) {
  return state_->call_on_pages(device_call::reserve, bytes, [&] { return state_->memory.reserve(bytes); });
}

status sim_device::do_release_range(address range, std::uint64_t bytes) {
  return state_->call_on_pages(device_call::release_range, bytes,
                               [&] { return state_->memory.release_range(range, bytes); });
}

result<page_run> sim_device::do_create(std::uint64_t bytes) {
  return state_->call_on_pages(device_call::create, bytes, [&] { return state_->memory.create(bytes); });
}

result<page_run> sim_device::create_host_pages(std::uint64_t bytes) {
  return state_->call_on_pages(device_call::create, bytes, [&] { return state_->memory.create(bytes, true); });
}

status sim_device::do_destroy(page_run pages) {
  return state_->call(device_call::destroy, [&] {
    const result<std::uint64_t> bytes = state_->memory.destroy(pages);
    if (bytes) state_->pay_for_pages(device_call::destroy, *bytes);
    return bytes.why();
  });
}

status sim_device::do_map(address begin, std::uint64_t bytes, page_run pages) {
  return state_->call_on_pages(device_call::map, bytes, [&]() -> status {
    const address elsewhere = state_->referee_on ? state_->memory.mapped_elsewhere(pages) : 0;
    if (status mapped = state_->memory.map(begin, bytes, pages); !mapped) return mapped;
    if (elsewhere != 0) state_->judge.mapped_again(elsewhere, begin, bytes);
    return {};
  });
}

status sim_device::do_set_access(address begin, std::uint64_t bytes) {
  return state_->call_on_pages(device_call::set_access, bytes, [&] { return state_->memory.set_access(begin, bytes); });
}

status sim_device::do_unmap(address begin, std::uint64_t bytes) {
  return state_->call_on_pages(device_call::unmap, bytes, [&]() -> status {
    if (status refused = state_->streams.refuse_while_capturing(device_call::unmap); !refused) return refused;
    if (status unmapped = state_->memory.unmap(begin, bytes); !unmapped) return unmapped;
    if (state_->referee_on) state_->judge.taken_away(begin, bytes);
    return {};
  });
}

result<memory_info> sim_device::do_memory() {
  return state_->call(device_call::memory, [&]() -> result<memory_info> {
    return memory_info{state_->memory.free_bytes(), state_->memory.capacity_bytes()};
  });
}

// --- fences and streams --------------------------------------------------------------------------------------

result<fence> sim_device::do_record(stream_ref stream) {
  return state_->call(device_call::record, [&] { return state_->streams.record(stream); });
}

result<fence> sim_device::do_record_context() {
  return state_->call(device_call::record_context, [&] { return state_->streams.record_context(0); });
}

result<fence> sim_device::record_in_context(std::uint32_t context) {
  return state_->call(device_call::record_context, [&] { return state_->streams.record_context(context); });
}

status sim_device::synchronize_context(std::uint32_t context) {
  return state_->call(device_call::synchronize, [&]() -> status {
    if (status refused = state_->streams.refuse_while_capturing(device_call::synchronize, context); !refused) {
      return refused;
    }
    state_->streams.wait_for_context(context);
    return {};
  });
}

result<bool> sim_device::do_query(fence fence) {
  return state_->call(device_call::query, [&] { return state_->streams.query(fence); });
}

status sim_device::do_wait_host(fence fence) {
  return state_->call(device_call::wait_host, [&] { return state_->streams.wait_host(fence); });
}

// Ignores `stop`: time is virtual, so nothing can happen while the host waits.
result<bool> sim_device::do_wait_any(std::span<const fence> fences, std::uint64_t most_ns,
                                     const std::function<bool()>& /*stop*/) {
  return state_->call(device_call::wait_host, [&] { return state_->streams.wait_any(fences, most_ns); });
}

std::uint64_t sim_device::do_clock_ns() const noexcept { return now_ns(); }

status sim_device::do_wait_stream(stream_ref waiter, fence fence) {
  return state_->call(device_call::wait_stream, [&] { return state_->streams.wait_stream(waiter, fence); });
}

void sim_device::do_drop(fence fence) noexcept { state_->locked(state_->streams)->drop(fence); }

result<std::uint64_t> sim_device::do_stream_id(stream_ref stream) {
  return state_->call(device_call::stream_id, [&] { return state_->streams.id(stream); });
}

// The simulated device has captures but no graphs; the program must call `graph_release`.
result<std::uint64_t> sim_device::do_capture_id(stream_ref /*stream*/) {
  return state_->call(device_call::capture_id, [&]() -> result<std::uint64_t> { return std::uint64_t{0}; });
}

status sim_device::do_watch_graph(stream_ref /*capturing*/, std::function<void()> /*gone*/) {
  return state_->call(device_call::watch_graph, [&]() -> status {
    return {errc::unsupported, "watch_graph: this device knows no graphs"};
  });
}

status sim_device::do_synchronize() {
  return state_->call(device_call::synchronize, [&]() -> status {
    if (status refused = state_->streams.refuse_while_capturing(device_call::synchronize); !refused) return refused;
    state_->streams.wait_for_all();
    return {};
  });
}

stream_ref sim_device::create_stream(sim_stream kind) { return state_->locked(state_->streams)->create(kind); }

status sim_device::destroy_stream(stream_ref stream) { return state_->locked(state_->streams)->destroy(stream); }

status sim_device::begin_capture(stream_ref stream) { return state_->locked(state_->streams)->begin_capture(stream); }

status sim_device::end_capture(stream_ref stream) { return state_->locked(state_->streams)->end_capture(stream); }

void sim_device::invalidate_capture(stream_ref stream, std::string_view cause) {
  state_->locked(state_->streams)->invalidate(stream, cause);
}

bool sim_device::capture_invalidated(stream_ref stream) const {
  return state_->locked(state_->streams)->is_invalidated(stream);
}

// --- time and work -------------------------------------------------------------------------------------------

std::uint64_t sim_device::now_ns() const noexcept { return state_->locked(state_->streams)->now_ns(); }

void sim_device::advance_to(std::uint64_t ns) noexcept { state_->locked(state_->streams)->advance_to(ns); }

void sim_device::advance_by(std::uint64_t ns) noexcept { state_->locked(state_->streams)->advance_by(ns); }

std::uint64_t sim_device::in_calls_ns() const noexcept { return state_->locked(state_->streams)->in_calls_ns(); }

result<std::uint64_t> sim_device::done_ns(fence fence) const { return state_->locked(state_->streams)->done_ns(fence); }

// Work on an unknown stream does not run, like a failed launch.
void sim_device::enqueue(stream_ref target_stream, std::uint64_t lag_ns) {
  const mutex_lock lock{state_->mutex};
  const std::uint32_t stream = state_->streams.find(target_stream);
  if (stream != sim_streams::no_stream) state_->streams.enqueue(stream, lag_ns);
}

void sim_device::enqueue_use(stream_ref target_stream, std::uint64_t lag_ns, address begin, std::uint64_t bytes) {
  const mutex_lock lock{state_->mutex};
  const std::uint32_t stream = state_->streams.find(target_stream);
  if (stream == sim_streams::no_stream) return;
  const work_point work = state_->streams.enqueue(stream, lag_ns);
  if (state_->referee_on) state_->judge.used(begin, bytes, work);
}

// --- the referee ---------------------------------------------------------------------------------------------

void sim_device::handed_out(address begin, std::uint64_t bytes, stream_ref receiver) {
  if (!state_->referee_on) return;
  const mutex_lock lock{state_->mutex};
  const std::uint32_t stream = state_->streams.find(receiver);
  const bool exists = stream != sim_streams::no_stream;
  state_->judge.handed_out(begin, bytes, receiver, exists ? state_->streams.mark(stream) : work_point{stream, 0});
}

void sim_device::given_back(address begin) {
  if (!state_->referee_on) return;
  const mutex_lock lock{state_->mutex};
  state_->judge.given_back(begin);
}

std::uint64_t sim_device::hazard_count() const noexcept { return state_->locked(state_->judge)->hazard_count(); }

std::vector<hazard> sim_device::hazards() const { return state_->locked(state_->judge)->hazards(); }

// --- faults and neighbours -----------------------------------------------------------------------------------

void sim_device::fail_nth(device_call call, std::uint64_t ordinal, errc code) {
  if (ordinal == 0 || code == errc::ok) return;  // no call is the 0th, and ok is no failure
  const mutex_lock lock{state_->mutex};
  state_->faults.push_back({call, ordinal, code});
}

void sim_device::set_foreign_bytes(std::uint64_t bytes) noexcept {
  state_->locked(state_->memory)->set_foreign_bytes(bytes);
}

std::uint64_t sim_device::used_bytes() const noexcept { return state_->locked(state_->memory)->used_bytes(); }

std::uint64_t sim_device::peak_used_bytes() const noexcept { return state_->locked(state_->memory)->peak_used_bytes(); }

std::uint64_t sim_device::mapped_pages() const noexcept { return state_->locked(state_->memory)->mapped_pages(); }

std::uint64_t sim_device::remapped_pages() const noexcept { return state_->locked(state_->memory)->remapped_pages(); }

std::uint64_t sim_device::live_mappings() const noexcept { return state_->locked(state_->memory)->live_mappings(); }

}  // namespace gpumem
