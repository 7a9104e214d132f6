/// The exact cost of a trace in device calls, locks and fences. It is the same on every machine, so a slower path shows
/// in review as a changed line of tests/golden/costs.txt.
///
/// GPUMEM_GOLDEN_WRITE=1 writes that file again instead of comparing with it (see README.md there).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/sim_device.hpp"
#include "log.hpp"
#include "replay.hpp"
#include "schedule.hpp"
#include "trace.hpp"

namespace gpumem::golden {
namespace {

constexpr const char* file_path = "tests/golden/costs.txt";
constexpr const char* write_anew = "GPUMEM_GOLDEN_WRITE=1 ctest --preset release -R '^golden\\.'";
constexpr std::size_t most_ops = 40'000;  // of each trace, so that sanitized builds can run it

/// By name of the run; ordered as in the file.
using rows = std::map<std::string, std::string>;

std::string text_of(const sim_device& d, const statistics& s) {
  std::string text = fmt::format("locks {} fences {} host_waits {} device_waits {} |", s.locks, s.fences, s.host_waits,
                                 s.device_waits);
  const call_counts calls = d.calls();
  for (std::size_t k = 0; k < device_call_kinds; ++k) {
    if (calls[k] != 0) text += fmt::format(" {} {}", to_string(static_cast<device_call>(k)), calls[k]);
  }
  return text;
}

settings settings_of(const policy_entry& entry) {
  settings s;
  const auto set = [&s](std::string_view option, std::string_view value) {
    const status ok = s.set(option, value);
    EXPECT_TRUE(ok.ok()) << ok.message();
  };
  set("policy", entry.name);
  set("stream_reuse",
      "device");  // every step of the ladder that takes other streams' memory, fences and waits included
  if (entry.needs.limit) set("limit", "2GiB");
  if (entry.needs.pools) set("pools", "2GiB");
  return s;
}

sim_config counted() {
  sim_config c;
  c.referee = false;
  return c;
}

std::unique_ptr<allocator> open(sim_device& on, const settings& with) {
  device* const devices[] = {&on};
  auto opened = allocator::open(devices, with);
  EXPECT_TRUE(opened.ok()) << opened.why().message();
  return opened.ok() ? *std::move(opened) : nullptr;
}

std::string replayed(const bench::replay_plan& plan, const settings& with) {
  sim_device device{counted()};
  const std::unique_ptr<allocator> a = open(device, with);
  if (!a) return "not opened";
  const result<bench::replay_outcome> out = bench::replay_timed(plan, *a, device);
  EXPECT_TRUE(out.ok()) << out.why().message();
  if (!out.ok()) return "failed";
  EXPECT_FALSE(out->oom);
  const statistics s = *a->stats(0);  // read first, because the calls below call the device
  return fmt::format("ops {} {}", out->ops, text_of(device, s));
}

/// One thread allocates on two streams of its own, another one frees, in turns: blocks pass through the depot.
std::string handed_off(const settings& with) {
  sim_device device{counted()};
  const std::unique_ptr<allocator> a = open(device, with);
  if (!a) return "not opened";
  const std::array streams{device.create_stream(), device.create_stream()};
  constexpr int rounds = 200;
  std::array<void*, 64> handed{};
  std::barrier turn{2};
  std::thread frees{[&] {
    for (int round = 0; round < rounds; ++round) {
      turn.arrive_and_wait();
      for (void* const p : handed) EXPECT_TRUE(a->try_deallocate(p).ok());
      turn.arrive_and_wait();
    }
  }};
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t k = 0; k < handed.size(); ++k) {
      const result<void*> p = a->try_allocate(
          {.bytes = std::array{512UL, 4096UL, 20'000UL, 90'000UL}[k % 4], .stream = streams[k / 4 % 2]});
      EXPECT_TRUE(p.ok()) << p.why().message();
      handed[k] = p.ok() ? *p : nullptr;
    }
    turn.arrive_and_wait();
    turn.arrive_and_wait();
  }
  frees.join();
  const statistics s = *a->stats(0);
  return fmt::format("ops {} {}", s.allocations + s.frees, text_of(device, s));
}

rows measured() {
  rows out;
  const result<std::vector<std::string>> files = bench::traces_in("bench/traces");
  EXPECT_TRUE(files.ok()) << files.why().message();
  if (!files.ok()) return out;
  settings off = settings_of(*find_policy("growth"));
  off.thread_cache = false;
  settings notify = settings_of(*find_policy("growth"));
  notify.stream_ids = stream_id_mode::notify;
  for (const std::string& file : *files) {
    const result<bench::trace> t = bench::load_trace(file);
    EXPECT_TRUE(t.ok()) << t.why().message();
    if (!t.ok()) continue;
    bench::trace cut = *t;
    cut.ops.resize(std::min(cut.ops.size(), most_ops));
    bench::replay_plan plain;
    plain.recorded = &cut;
    bench::replay_plan two = plain;
    two.tenants = 2;
    bench::replay_plan shared = plain;
    shared.second_uses = bench::plan_second_uses(cut, 0.1, 1);
    for (const policy_entry& entry : known_policies()) {
      out[cut.name + " " + entry.name] = replayed(plain, settings_of(entry));
    }
    out[cut.name + " growth,thread_cache=0"] = replayed(plain, off);
    out[cut.name + " growth,tenants=2"] = replayed(two, settings_of(*find_policy("growth")));
    out[cut.name + " growth,tenants=2,stream_ids=notify"] = replayed(two, notify);
    out[cut.name + " growth,shared_use=10%"] = replayed(shared, settings_of(*find_policy("growth")));
  }
  out["hand_off growth,stream_ids=notify"] = handed_off(notify);
  out["hand_off grab_all"] = handed_off(settings_of(*find_policy("grab_all")));
  return out;
}

rows read() {
  rows out;
  std::ifstream file{file_path};
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t colon = line.find(": ");
    out[line.substr(0, colon)] = colon == std::string::npos ? "" : line.substr(colon + 2);
  }
  return out;
}

void write(const rows& all) {
  std::ofstream file{file_path};
  file << "# What each trace costs: pinned by tests/golden/costs_test.cpp, written anew by\n# " << write_anew << '\n';
  for (const auto& [what, figures] : all) file << what << ": " << figures << '\n';
  file.flush();
  ASSERT_TRUE(file.good()) << file_path << " cannot be written";
}

TEST(Costs, EqualTheGoldenFile) {
  const log_sink former = set_log_sink([](std::string_view) {});
  const rows now = measured();
  static_cast<void>(set_log_sink(former));
  if (const char* const wanted = std::getenv("GPUMEM_GOLDEN_WRITE"); wanted != nullptr && *wanted == '1') {
    write(now);
    GTEST_SKIP() << file_path << " was written, nothing was compared";
  }
  const rows before = read();
  ASSERT_FALSE(before.empty()) << file_path << " is missing; write it with\n  " << write_anew;
  std::string differences;
  for (const auto& [what, figures] : now) {
    const auto pinned = before.find(what);
    if (pinned == before.end()) {
      differences += fmt::format("{}\n  pinned: nothing\n  now:    {}\n", what, figures);
    } else if (pinned->second != figures) {
      differences += fmt::format("{}\n  pinned: {}\n  now:    {}\n", what, pinned->second, figures);
    }
  }
  for (const auto& [what, figures] : before) {
    if (now.find(what) == now.end()) differences += fmt::format("{}\n  pinned: {}\n  now:    nothing\n", what, figures);
  }
  EXPECT_TRUE(differences.empty()) << differences << "Where that is meant: " << write_anew;
}

}  // namespace
}  // namespace gpumem::golden
