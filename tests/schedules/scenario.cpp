#include "scenario.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace gpumem::schedules {
namespace {

using kind = operation::kind;

constexpr std::array<std::string_view, static_cast<std::size_t>(kind::count_)> kind_names{"allocate",
                                                                                          "free",
                                                                                          "record_use",
                                                                                          "work",
                                                                                          "pass_time",
                                                                                          "create_stream",
                                                                                          "end_stream",
                                                                                          "begin_capture",
                                                                                          "end_capture",
                                                                                          "release_graph",
                                                                                          "begin_unnoticed_capture",
                                                                                          "end_unnoticed_capture",
                                                                                          "destroy_graph",
                                                                                          "trim",
                                                                                          "set_limit",
                                                                                          "statistics",
                                                                                          "check",
                                                                                          "fill_queue",
                                                                                          "drain_queue",
                                                                                          "device_fault",
                                                                                          "host_fault"};

struct weight {
  kind action;
  unsigned share;
};

/// The operations of a topic's threads, by share.
std::vector<weight> weights_of(topic subject) {
  std::vector<weight> weights{{kind::allocate, 40}, {kind::free, 30},     {kind::work, 8},  {kind::pass_time, 3},
                              {kind::trim, 6},      {kind::set_limit, 2}, {kind::check, 1}, {kind::statistics, 1}};
  switch (subject) {
    case topic::requests:
    case topic::pools:
      weights.push_back({kind::record_use, 5});
      break;
    case topic::preloaded:
      weights.push_back({kind::create_stream, 2});
      weights.push_back({kind::end_stream, 2});
      break;
    case topic::streams:
      weights.push_back({kind::record_use, 8});
      weights.push_back({kind::create_stream, 6});
      weights.push_back({kind::end_stream, 8});
      weights.push_back({kind::fill_queue, 6});
      weights.push_back({kind::drain_queue, 4});
      break;
    case topic::captures:
      weights.push_back({kind::record_use, 4});
      weights.push_back({kind::begin_capture, 10});
      weights.push_back({kind::end_capture, 12});
      weights.push_back({kind::release_graph, 8});
      weights.push_back({kind::begin_unnoticed_capture, 5});
      weights.push_back({kind::end_unnoticed_capture, 6});
      weights.push_back({kind::destroy_graph, 4});
      break;
    case topic::faults:
      weights.push_back({kind::record_use, 5});
      weights.push_back({kind::begin_capture, 4});
      weights.push_back({kind::end_capture, 5});
      weights.push_back({kind::release_graph, 4});
      weights.push_back({kind::device_fault, 4});
      weights.push_back({kind::host_fault, 10});
      break;
  }
  return weights;
}

class maker {
 public:
  maker(topic subject, std::uint64_t seed) : subject_{subject}, random_{seed}, weights_{weights_of(subject)} {
    for (const weight& entry : weights_) all_shares_ += entry.share;
  }

  scenario make() {
    scenario program;
    program.setup = make_setup();
    setup_ = program.setup;
    program.prelude = chance(90) ? make_prelude() : make_history();
    program.threads.resize(chance(60) ? 2 : chance(75) ? 3 : 4);
    for (auto& thread : program.threads) {
      const std::size_t length = 3 + pick(6);
      for (std::size_t i = 0; i < length; ++i) thread.push_back(make_operation(make_kind()));
    }
    program.number();
    return program;
  }

 private:
  std::uint64_t pick(std::uint64_t end) { return random_() % end; }
  bool chance(unsigned percent) { return pick(100) < percent; }
  template <typename T, std::size_t n>
  T one_of(const T (&values)[n]) {
    return values[pick(n)];
  }

  allocator_setup make_setup() {
    allocator_setup made;
    made.policy = one_of<const char*>({"growth", "growth", "caching", "expandable", "growth:backing=mapped"});
    made.stream_ids = one_of<const char*>({"query", "notify"});
    made.reuse = one_of<const char*>({"poll", "poll", "device", "host"});
    made.limit_bytes = one_of<std::uint64_t>({16 * mib, 32 * mib, 64 * mib, 96 * mib});
    made.card_bytes = chance(50) ? made.limit_bytes : made.limit_bytes + 32 * mib;
    made.thread_cache = chance(80);
    made.callback = chance(15);
    made.prelude_apart = chance(50);
    made.threads_end = chance(5);
    made.notices_captures = subject_ == topic::captures;
    if (subject_ == topic::pools || (subject_ == topic::faults && chance(50))) {
      chance(60) || subject_ == topic::faults ? made.pools = 2 : made.devices = 2;
      made.card_bytes = made.limit_bytes * made.pools;
    }
    if (subject_ == topic::preloaded) {
      made.preloaded = true;
      made.stream_ids = "notify";
      made.policy = one_of<const char*>({"growth", "growth", "caching"});
    }
    return made;
  }

  std::vector<operation> make_prelude() {
    std::vector<operation> made;
    const std::size_t filled = pick(5);
    for (std::size_t i = 0; i < filled; ++i) {
      made.push_back(make_operation(kind::allocate));
      made.back().block = static_cast<std::uint32_t>(i);
      if (chance(50)) made.push_back({.action = kind::free, .block = static_cast<std::uint32_t>(i)});
    }
    return made;
  }

  // Long enough for rules that learn from earlier requests, such as src/heap/whole_segments.hpp.
  std::vector<operation> make_history() {
    std::vector<operation> made;
    for (std::size_t left = 20 + pick(60); left != 0; --left) {
      made.push_back(make_operation(chance(50) ? kind::allocate : chance(85) ? kind::free : kind::pass_time));
    }
    return made;
  }

  kind make_kind() {
    std::uint64_t share = pick(all_shares_);
    for (const weight& entry : weights_) {
      if (share < entry.share) return entry.action;
      share -= entry.share;
    }
    return kind::allocate;
  }

  operation make_operation(kind action) {
    operation made{.action = action,
                   .block = static_cast<std::uint32_t>(pick(block_slots)),
                   .stream = static_cast<std::uint32_t>(pick(subject_ == topic::requests ? 2 : stream_slots)),
                   .pool = static_cast<std::uint32_t>(pick(setup_.pools * setup_.devices))};
    switch (action) {
      case kind::allocate:
        made.amount = make_size();
        break;
      case kind::free:
        made.pool = chance(20) ? 1 : 0;
        break;
      case kind::work:
        made.amount = one_of<std::uint64_t>({200 * microsecond, millisecond, 3 * millisecond, 50 * millisecond});
        break;
      case kind::pass_time:
        made.amount = one_of<std::uint64_t>({100 * microsecond, millisecond, 4 * millisecond});
        break;
      case kind::trim:
        made.amount = chance(70) ? UINT64_MAX : setup_.limit_bytes / 2;
        break;
      case kind::set_limit:
        made.amount = chance(50) ? setup_.limit_bytes : setup_.limit_bytes / 2;
        break;
      case kind::fill_queue:
        made.amount = one_of<std::uint64_t>({millisecond, 20 * millisecond});
        break;
      case kind::device_fault:
        made.block = static_cast<std::uint32_t>(one_of<device_call>(
            {device_call::alloc, device_call::free, device_call::record, device_call::record_context,
             device_call::query, device_call::wait_stream, device_call::create, device_call::map}));
        made.amount = 1 + pick(3);
        break;
      case kind::host_fault:
        made.amount = 1 + pick(8);
        break;
      default:
        break;
    }
    return made;
  }

  // Most are a large part of the limit, so that memory is always short.
  std::uint64_t make_size() {
    const std::uint64_t limit = setup_.limit_bytes;
    if (chance(15)) return one_of<std::uint64_t>({512, 4096, mib});
    return one_of<std::uint64_t>({2 * mib, limit / 4, limit / 4, limit / 2, limit / 2, limit / 2 + 2 * mib, limit});
  }

  topic subject_;
  generator random_;
  std::vector<weight> weights_;
  unsigned all_shares_ = 0;
  allocator_setup setup_;
};

}  // namespace

std::string operation::to_string() const {
  return fmt::format("#{} {} block {} stream {} pool {} amount {}", id, kind_names[static_cast<std::size_t>(action)],
                     block, stream, pool, amount);
}

void scenario::number() {
  std::uint32_t next = 1;
  for (operation& each : prelude) each.id = next++;
  for (auto& thread : threads) {
    for (operation& each : thread) each.id = next++;
  }
}

std::size_t scenario::operations() const noexcept {
  std::size_t sum = prelude.size();
  for (const auto& thread : threads) sum += thread.size();
  return sum;
}

std::string scenario::to_string() const {
  std::string text = fmt::format(
      "policy {}, stream ids {}, reuse {}, card {} MiB, limit {} MiB, {} pool(s), {} device(s), wait {} ms{}{}{}{}{}\n",
      setup.policy, setup.stream_ids, setup.reuse, setup.card_bytes / mib, setup.limit_bytes / mib, setup.pools,
      setup.devices, setup.free_wait_ms, setup.preloaded ? ", preloaded" : "",
      setup.thread_cache ? "" : ", no thread caches", setup.callback ? ", callback" : "",
      setup.threads_end ? ", threads end" : "", setup.prelude_apart ? "" : ", the first thread runs the prelude");
  for (const operation& each : prelude) text += fmt::format("  before: {}\n", each.to_string());
  for (std::size_t t = 0; t < threads.size(); ++t) {
    for (const operation& each : threads[t]) text += fmt::format("  thread {}: {}\n", t, each.to_string());
  }
  return text;
}

std::string_view to_string(topic subject) noexcept {
  constexpr std::array<std::string_view, 6> names{"requests", "preloaded", "streams", "captures", "faults", "pools"};
  return names[static_cast<std::size_t>(subject)];
}

scenario generate(topic subject, std::uint64_t seed) { return maker{subject, seed}.make(); }

}  // namespace gpumem::schedules
