#include "world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "throwing/host_memory.hpp"

namespace gpumem::schedules {
namespace {

using kind = operation::kind;

address to_address(const void* begin) noexcept { return reinterpret_cast<address>(begin); }

settings settings_of(const allocator_setup& setup) {
  settings made;
  const auto set = [&made](std::string_view name, const std::string& value) {
    static_cast<void>(made.set(name, value));
  };
  set("policy", setup.policy);
  set("stream_ids", setup.stream_ids);
  set("stream_reuse", setup.reuse);
  set("thread_cache", setup.thread_cache ? "1" : "0");
  set("publish", "0");
  set("free_wait", std::to_string(setup.free_wait_ms));
  if (setup.pools == 1) {
    set("limit", std::to_string(setup.limit_bytes));
  } else {
    std::string pools;
    for (std::uint32_t p = 0; p < setup.pools; ++p) {
      pools += fmt::format("{}p{}:{}", p == 0 ? "" : ",", p, setup.limit_bytes);
    }
    set("pools", pools);
  }
  return made;
}

/// The n-th host allocation of the calling thread fails while this lives.
class failing_host {
 public:
  explicit failing_host(std::uint64_t count) { host_memory::fail_nth(count); }
  ~failing_host() { host_memory::fail_nth(0); }
  failing_host(const failing_host&) = delete;
  failing_host& operator=(const failing_host&) = delete;

 private:
  host_memory::watched counted_;
};

}  // namespace

world::world(const scenario& program, std::string* trace) : program_{program}, trace_{trace}, rules_{program.setup} {
  request_of_thread_.fill(no_request);
  open();
}

world::~world() = default;

void world::open() {
  const allocator_setup& setup = program_.setup;
  for (std::uint32_t ordinal = 0; ordinal < setup.devices; ++ordinal) {
    sim_config card;
    card.ordinal = static_cast<int>(ordinal);
    card.capacity_bytes = setup.card_bytes;
    card.first_address = (std::uint64_t{ordinal} + 1) << 40;
    devices_.push_back(std::make_unique<explored_device>(card, setup.notices_captures));
    // Handles are unique in a process.
    for (std::uint32_t i = 0; i < ordinal * 16; ++i) devices_.back()->simulated().create_stream();
    devices_.back()->set_witness(this);
  }
  for (const auto& card : devices_) {
    std::vector<explored_device*> peers;
    for (const auto& each : devices_) peers.push_back(each.get());
    card->set_peers(std::move(peers));
  }
  std::vector<device*> all;
  for (const auto& card : devices_) all.push_back(card.get());
  auto opened = pooled_allocator::open(all, settings_of(setup));
  if (!opened) return fail(rule::answers, "open: " + opened.why().message());
  memory_ = *std::move(opened);
  for (std::uint32_t i = 0; i < stream_slots; ++i) {
    streams_[i].handle = device_of_stream(i).create_stream();
    streams_[i].exists = true;
  }
  if (setup.preloaded) {
    home_ = devices_.front()->create_stream();
    all_work_ = devices_.front()->create_stream();
    expect(memory_->stand_for_all_work(all_work_), "stand_for_all_work");
  }
  if (!setup.callback) return;
  memory_->on_out_of_memory([this](int, std::uint64_t) {
    const host_memory::unwatched uncounted;
    return scheduler::atomically([this] { return free_in_callback(); });
  });
}

void world::set_time(std::uint64_t ns) {
  for (const auto& card : devices_) card->simulated().advance_to(ns);
}

void world::fail(rule broken, std::string why) {
  if (failure_ || ignores(broken)) return;
  failure_ = violation{broken, std::move(why)};
}

void world::note(std::size_t thread, const operation& step, std::string_view text) {
  if (trace_ == nullptr) return;
  *trace_ +=
      fmt::format("  {:>9} ns, thread {}, {}{}\n", scheduler::from_thread()->now(), thread, step.to_string(), text);
}

void world::expect(const status& answer, const char* call, bool host_failed) {
  if (answer.ok()) return;
  const bool is_injected = answer.code() == errc::host_failure ? host_failed : rules_.device_fails();
  if (!is_injected) fail(rule::answers, fmt::format("{}: {}", call, answer.message()));
}

explored_device& world::device_of(std::uint32_t pool) noexcept {
  return *devices_[program_.setup.devices == 1 ? 0 : pool];
}

explored_device& world::device_of_stream(std::uint32_t stream) noexcept {
  return *devices_[stream % program_.setup.devices];
}

// With several devices a stream has the pool of its device.
std::uint32_t world::pool_for(const operation& step) const noexcept {
  return program_.setup.devices > 1 ? step.stream % program_.setup.devices : step.pool;
}

bool world::may_use(const stream_slot& stream, std::size_t thread) const noexcept {
  return stream.exists && !stream.is_ending &&
         (stream.capturing_thread == no_thread || stream.capturing_thread == thread);
}

world::call_times world::begin_call() const {
  const scheduler* const schedule = scheduler::from_thread();
  call_times times;
  if (schedule == nullptr) return times;
  times.begin_ns = schedule->now();
  times.excused_ns = schedule->excused_ns();
  for (const auto& card : devices_) {
    times.in_device_ns += card->waited_ns(schedule->thread());
    times.unlimited_ns += card->unlimited_ns(schedule->thread());
  }
  return times;
}

void world::expect_no_wait(const char* call, const call_times& begin) {
  const call_times end = begin_call();
  const std::uint64_t lasted = end.begin_ns - begin.begin_ns;
  const std::uint64_t own = end.in_device_ns - begin.in_device_ns + end.excused_ns - begin.excused_ns;
  if (lasted > own)
    fail(rule::no_wait, fmt::format("{} has waited {} ns for a call of another thread", call, lasted - own));
}

void world::expect_deadline(const operation& step, const call_times& begin) {
  const call_times end = begin_call();
  const std::uint64_t lasted = end.begin_ns - begin.begin_ns;
  const std::uint64_t excused = end.excused_ns - begin.excused_ns + end.unlimited_ns - begin.unlimited_ns;
  if (lasted <= program_.setup.free_wait_ms * millisecond + excused) return;
  fail(rule::deadline, fmt::format("{} took {} us, and may wait {} ms at most", step.to_string(), lasted / microsecond,
                                   program_.setup.free_wait_ms));
}

// --- operations ------------------------------------------------------------------------------------------------

void world::prepare() { act_each(0, program_.prelude); }

void world::act_each(std::size_t thread, const std::vector<operation>& steps) {
  for (const operation& step : steps) {
    scheduler::from_thread()->begin_operation(step.id);
    scheduler::atomically([&] {
      note(thread, step, "");
      for (const auto& card : devices_) card->begin_operation();
      act(thread, step);
      note(thread, step, " returns");
    });
    for (const auto& card : devices_) card->look_again();
  }
}

void world::run(std::size_t thread) {
  act_each(thread, program_.threads[thread]);
  scheduler::from_thread()->begin_operation(UINT32_MAX - static_cast<std::uint32_t>(thread));
}

void world::act(std::size_t thread, const operation& step) try {
  if (memory_ == nullptr) return;
  if (step.action == kind::host_fault) {
    host_fault_[thread] = step.amount;
    return;
  }
  switch (step.action) {
    case kind::allocate:
      return allocate(thread, step);
    case kind::free:
      return free(thread, step);
    case kind::record_use:
      return record_use(step);
    case kind::work:
      return work(step);
    case kind::pass_time:
      return scheduler::from_thread()->pass(step.amount);
    case kind::create_stream: {
      stream_slot& stream = streams_[step.stream];
      if (stream.exists || stream.is_ending) return;
      stream.handle = device_of_stream(step.stream).create_stream();
      stream.exists = true;
      return;
    }
    case kind::end_stream:
      return end_stream(step);
    case kind::begin_capture:
      return begin_capture(thread, step, true);
    case kind::begin_unnoticed_capture:
      return begin_capture(thread, step, false);
    case kind::end_capture:
      return end_capture(thread, step, true);
    case kind::end_unnoticed_capture:
      return end_capture(thread, step, false);
    case kind::release_graph:
      return release_graph(step);
    case kind::destroy_graph:
      return destroy_graph(step);
    case kind::trim:
      return trim(step);
    case kind::set_limit:
      return set_limit(step);
    case kind::statistics:
      return expect(scheduler::with_points([&] { return memory_->stats(static_cast<int>(step.pool)); }).why(), "stats");
    case kind::check:
      return expect(scheduler::with_points([&] { return memory_->check(static_cast<int>(step.pool)); }), "check");
    case kind::fill_queue:
    case kind::drain_queue:
      return set_queue(step);
    case kind::device_fault:
      rules_.fail_device();
      return device_of(step.pool).fail_nth(static_cast<device_call>(step.block), step.amount, errc::device_error);
    case kind::host_fault:
    case kind::count_:
      return;
  }
} catch (const std::exception& thrown) {
  fail(rule::answers, fmt::format("{}: an exception: {}", step.to_string(), thrown.what()));
}

void world::allocate(std::size_t thread, const operation& step) {
  block_slot& block = blocks_[step.block];
  stream_slot& stream = streams_[step.stream];
  if (block.is_taken || !may_use(stream, thread)) return;
  const std::uint32_t pool = pool_for(step);
  explored_device& card = device_of(pool);
  const stream_ref handle = program_.setup.preloaded ? home_ : stream.handle;
  block.is_taken = true;
  ++stream.users;
  const call_times begin = begin_call();
  const std::size_t request = rules_.begin_request(pool, step.amount, card.simulated().now_ns());
  request_of_thread_[thread] = request;
  result<void*> got = nullptr;
  bool host_failed = false;
  {
    const failing_host fault{std::exchange(host_fault_[thread], 0)};
    got = scheduler::with_points([&] {
      return memory_->try_allocate({.bytes = step.amount, .stream = handle, .device = static_cast<int>(pool)});
    });
    host_failed = host_memory::failed();
  }
  request_of_thread_[thread] = no_request;
  --stream.users;
  if (got && stream.capturing_thread != no_thread) device_of_stream(step.stream).begin_strictly(handle);
  expect_deadline(step, begin);
  const std::uint64_t time_ns = card.simulated().now_ns();
  if (got) {
    rules_.served(request, to_address(*got), time_ns);
    card.simulated().handed_out(to_address(*got), (step.amount + 511) / 512 * 512, handle);
    block.begin = *got;
    block.bytes = step.amount;
    block.pool = pool;
    block.request = request;
    block.stream = handle;
  } else {
    block.is_taken = false;
    note(thread, step, " is refused");
    rules_.refused(request, got.why().message(), time_ns, card.all_done_ns(), host_failed);
    if (got.code() != errc::out_of_memory) expect(got.why(), "allocate", host_failed);
  }
  if (std::string wrong = rules_.judge_refusals(); !wrong.empty()) fail(rule::refusals, std::move(wrong));
}

void world::free(std::size_t thread, const operation& step) {
  block_slot& block = blocks_[step.block];
  if (!block.is_taken || block.begin == nullptr || block.users != 0) return;
  const failing_host fault{std::exchange(host_fault_[thread], 0)};
  free_block(block, step.pool != 0);
}

void world::free_block(block_slot& block, bool states_bytes) {
  void* const freed = std::exchange(block.begin, nullptr);
  const call_times begin = begin_call();
  const std::size_t intrusion = rules_.begin_intrusion();
  device_of(block.pool).simulated().given_back(to_address(freed));
  status done;
  if (program_.setup.preloaded) {
    done = scheduler::with_points([&] {
      return memory_->free_behind_all_work(freed) ? status{} : memory_->try_deallocate(freed, {.stream = all_work_});
    });
  } else {
    free_args stated;
    if (states_bytes) stated.bytes = block.bytes;
    done = scheduler::with_points([&] { return memory_->try_deallocate(freed, stated); });
  }
  rules_.end_intrusion(intrusion);
  expect_no_wait("a free", begin);
  if (!done && host_memory::failed()) {  // it is live still
    block.begin = freed;
    return;
  }
  expect(done, "free");
  rules_.freed(block.request);
  block.is_taken = false;
}

bool world::free_in_callback() {
  for (block_slot& block : blocks_) {
    if (block.begin == nullptr || block.users != 0) continue;
    free_block(block, false);
    return true;
  }
  return false;
}

void world::record_use(const operation& step) {
  block_slot& block = blocks_[step.block];
  stream_slot& stream = streams_[step.stream];
  if (block.begin == nullptr || !may_use(stream, no_thread - 1) ||
      &device_of(block.pool) != &device_of_stream(step.stream))
    return;
  if (program_.setup.preloaded) return;
  ++block.users;
  ++stream.users;
  const std::size_t intrusion = rules_.begin_intrusion();
  const status done = scheduler::with_points([&] { return memory_->record_use(block.begin, stream.handle); });
  rules_.end_intrusion(intrusion);
  if (done) device_of(block.pool).enqueue(stream.handle, 200 * microsecond, to_address(block.begin), block.bytes);
  --block.users;
  --stream.users;
  expect(done, "record_use");
}

// Enqueues a kernel. It uses the block if the block belongs to its stream, or if frees wait for every stream.
void world::work(const operation& step) {
  block_slot& block = blocks_[step.block];
  stream_slot& stream = streams_[step.stream];
  if (!may_use(stream, no_thread - 1)) return;
  const bool uses = block.begin != nullptr && (program_.setup.preloaded || block.stream == stream.handle);
  device_of_stream(step.stream)
      .enqueue(stream.handle, step.amount, uses ? to_address(block.begin) : 0, uses ? block.bytes : 0);
}

void world::end_stream(const operation& step) {
  stream_slot& stream = streams_[step.stream];
  if (!stream.exists || stream.is_ending || stream.users != 0 || stream.capturing_thread != no_thread) return;
  stream.is_ending = true;
  const std::size_t intrusion = rules_.begin_intrusion();
  const call_times begin = begin_call();
  const bool queue_is_full = device_of_stream(step.stream).is_full(stream.handle, begin.begin_ns);
  expect(scheduler::with_points([&] { return memory_->stream_release(stream.handle); }), "stream_release");
  // A record that another thread makes on this very stream comes before the end of its handle.
  if (!queue_is_full) expect_no_wait("stream_release", begin);
  rules_.end_intrusion(intrusion);
  expect(device_of_stream(step.stream).destroy_stream(stream.handle), "destroy_stream");
  stream.exists = stream.is_ending = false;
}

// --- captures --------------------------------------------------------------------------------------------------

void world::begin_capture(std::size_t thread, const operation& step, bool is_told) {
  stream_slot& stream = streams_[step.stream];
  explored_device& card = device_of_stream(step.stream);
  const bool is_free = stream.exists && !stream.is_ending && stream.users == 0 && stream.capturing_thread == no_thread;
  if (!is_free || stream.graph.id != 0 || stream.device_graph != 0) return;
  if (!is_told && (program_.setup.stream_ids != "query" || !program_.setup.notices_captures)) return;
  stream.capturing_thread = thread;
  stream.is_told = is_told;
  stream.unsettled = rules_.begin_capture();
  if (is_told) {
    status begun;
    bool host_failed = false;
    {
      const failing_host fault{std::exchange(host_fault_[thread], 0)};
      begun = scheduler::with_points([&] { return memory_->capture_begin(stream.handle); });
      host_failed = host_memory::failed();
    }
    if (!begun) {
      stream.capturing_thread = no_thread;
      rules_.end_capture(stream.unsettled);
      return expect(begun, "capture_begin", host_failed);
    }
    if (card.waits_under_way() != 0) fail(rule::captures, "a capture begins while the host waits for the device");
    expect(card.begin_capture(stream.handle), "begin_capture of the device");
  } else {
    card.begin_unnoticed_capture(stream.handle);
  }
  stream.device_capture = card.capture_of(stream.handle);
}

void world::end_capture(std::size_t thread, const operation& step, bool is_told) {
  stream_slot& stream = streams_[step.stream];
  if (stream.capturing_thread != thread || stream.is_told != is_told || stream.device_capture == 0) return;
  end_capture(stream);
}

void world::end_capture(stream_slot& stream) {
  const auto index = static_cast<std::uint32_t>(&stream - streams_.data());
  const status ended = device_of_stream(index).end_capture(stream.handle);
  if (!ended) fail(rule::captures, fmt::format("a capture is spoilt: {}", ended.message()));
  const std::uint64_t device_graph = std::exchange(stream.device_capture, 0);
  if (stream.is_told) {
    const result<graph_ref> graph = scheduler::with_points([&] { return memory_->capture_end(stream.handle); });
    expect(graph.why(), "capture_end");
    if (graph) stream.graph = *graph;
  }
  stream.device_graph = device_graph;  // not before: another thread could destroy a graph that is not released
  stream.capturing_thread = no_thread;
}

void world::release_graph(const operation& step) { release_graph(streams_[step.stream]); }

void world::release_graph(stream_slot& stream) {
  if (stream.graph.id == 0) return;
  const graph_ref graph = std::exchange(stream.graph, {});
  expect(scheduler::with_points([&] { return memory_->graph_release(graph); }), "graph_release");
  stream.device_graph = 0;
  rules_.end_capture(stream.unsettled);
}

void world::destroy_graph(const operation& step) {
  stream_slot& stream = streams_[step.stream];
  if (stream.device_graph == 0 || stream.graph.id != 0) return;
  device_of_stream(step.stream).destroy_graph(std::exchange(stream.device_graph, 0));
  // The allocator notices it at the next request, at a moment unknown here.
}

// --- memory ----------------------------------------------------------------------------------------------------

void world::trim(const operation& step) {
  const std::size_t intrusion = rules_.begin_intrusion();
  const result<trim_result> done =
      scheduler::with_points([&] { return memory_->trim(static_cast<int>(step.pool), step.amount); });
  rules_.end_intrusion(intrusion);
  expect(done.why(), "trim");
}

void world::set_limit(const operation& step) {
  const std::size_t intrusion = rules_.begin_intrusion();
  const std::size_t limit = rules_.begin_limit(step.pool, step.amount);
  const result<limit_result> done =
      scheduler::with_points([&] { return memory_->set_limit(static_cast<int>(step.pool), step.amount); });
  rules_.end_intrusion(intrusion);
  if (done.code() == errc::bad_setting) return rules_.drop_limit(limit);  // more than the other pools leave
  rules_.end_limit(limit);
  expect(done.why(), "set_limit");
}

void world::set_queue(const operation& step) {
  stream_slot& stream = streams_[step.stream];
  if (!stream.exists || stream.is_ending) return;
  explored_device& card = device_of_stream(step.stream);
  if (step.action == kind::drain_queue) return card.drain_queue(stream.handle);
  const std::uint64_t time_ns = card.simulated().now_ns();
  card.fill_queue(stream.handle, step.amount > UINT64_MAX - time_ns ? no_deadline : time_ns + step.amount);
}

// --- the end ---------------------------------------------------------------------------------------------------

void world::settle_graphs() {
  for (std::uint32_t i = 0; i < stream_slots; ++i) {
    stream_slot& stream = streams_[i];
    if (stream.device_capture != 0) end_capture(stream);
    release_graph(stream);
    if (stream.device_graph != 0) device_of_stream(i).destroy_graph(stream.device_graph);
  }
}

// Frees everything and waits for all work: every byte must go back, and every invariant must hold.
void world::settle() {
  if (memory_ == nullptr) return;
  for (std::uint32_t i = 0; i < stream_slots; ++i) device_of_stream(i).drain_queue(streams_[i].handle);
  settle_graphs();
  for (block_slot& block : blocks_) {
    block.users = 0;
    if (block.begin != nullptr) free_block(block, false);
  }
  std::uint64_t done_ns = 0;
  for (const auto& card : devices_) done_ns = std::max(done_ns, card->all_done_ns());
  scheduler::from_thread()->sleep_until(done_ns);
  for (std::uint32_t pool = 0; pool < program_.setup.pools * program_.setup.devices; ++pool) settle_pool(pool);
  settle_limits();
  for (const auto& card : devices_) {
    const std::vector<hazard> hazards = card->simulated().hazards();
    if (!hazards.empty()) fail(rule::hazards, hazards.front().to_string());
  }
  if (std::string wrong = rules_.judge_refusals(); !wrong.empty()) fail(rule::refusals, std::move(wrong));
  memory_.reset();
}

void world::settle_limits() {
  if (program_.setup.devices != 1) return;
  std::uint64_t all_bytes = 0;
  for (std::uint32_t pool = 0; pool < program_.setup.pools; ++pool) {
    const result<statistics> figures = memory_->stats(static_cast<int>(pool));
    if (figures) all_bytes += figures->limit_bytes;
  }
  if (all_bytes > program_.setup.card_bytes) {
    fail(rule::conservation, fmt::format("the pools' limits are {} MiB together, of a card of {} MiB", all_bytes / mib,
                                         program_.setup.card_bytes / mib));
  }
}

void world::settle_pool(std::uint32_t pool) {
  const int device = static_cast<int>(pool);
  if (program_.setup.notices_captures) notice_captures(pool);
  expect(memory_->check(device), "check");
  const result<trim_result> trimmed = memory_->trim(device);
  expect(trimmed.why(), "trim");
  expect(memory_->check(device), "check after trim");
  const result<statistics> figures = memory_->stats(device);
  if (!figures || !trimmed || rules_.device_fails()) return;
  if (figures->live_bytes != 0)
    fail(rule::conservation, fmt::format("{} bytes are live in the end", figures->live_bytes));
  if (figures->reserved_bytes != 0) {
    fail(rule::conservation,
         fmt::format("{} MiB stay when everything is free and done: {} MiB pending, {} MiB in use",
                     figures->reserved_bytes / mib, trimmed->pending_bytes / mib, trimmed->in_use_bytes / mib));
  }
  const std::uint64_t most = rules_.most_live_bytes(pool);
  if (!program_.setup.notices_captures && figures->peak_live_bytes > most) {
    fail(rule::peak,
         fmt::format("peak_live_bytes is {}, and at most {} bytes were live", figures->peak_live_bytes, most));
  }
}

// Makes requests, by which the allocator notices captures that ended and graphs that were destroyed.
void world::notice_captures(std::uint32_t pool) {
  for (std::uint32_t i = 0; i < stream_slots; ++i) {
    if (!streams_[i].exists || i % program_.setup.devices != pool % program_.setup.devices) continue;
    const result<void*> any =
        memory_->try_allocate({.bytes = 512, .stream = streams_[i].handle, .device = static_cast<int>(pool)});
    if (any) memory_->deallocate(*any);
  }
}

// --- reports of the devices --------------------------------------------------------------------------------------

std::size_t world::request_under_way() const noexcept {
  const scheduler* const schedule = scheduler::from_thread();
  return schedule != nullptr ? request_of_thread_[schedule->thread()] : no_request;
}

void world::asks_segment(const device& card, std::uint64_t bytes) {
  const std::size_t request = request_under_way();
  if (request == no_request || host_memory::failed()) return;
  explored_device& mine = *devices_[static_cast<std::size_t>(card.info().ordinal)];
  std::string wrong = rules_.judge_growth(request, card, bytes, mine.simulated().now_ns(), mine.all_done_ns());
  if (!wrong.empty()) fail(rule::growth, std::move(wrong));
}

void world::took_segment(const device& card, address begin, std::uint64_t bytes) {
  if (request_under_way() != no_request) rules_.took_segment(request_under_way(), card, begin, bytes);
}

void world::returned_segments(const device& card, address begin, std::uint64_t bytes) {
  rules_.returned_segments(card, begin, bytes);
}

}  // namespace gpumem::schedules
