#include "explorer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "log.hpp"
#include "world.hpp"

namespace gpumem::schedules {
namespace {

std::uint64_t mixed(std::uint64_t seed) noexcept {
  std::uint64_t z = seed + 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

std::string finding::to_string() const {
  std::string text =
      fmt::format("rule `{}`: {}\nseed {}, after {} schedule(s)\n{}", schedules::to_string(broken.broken),
                  broken.message, seed, schedules, program.to_string());
  for (const turn& t : turns) {
    text += fmt::format("  turn: thread {} at point {} of operation #{} gives way to thread {}\n", t.thread, t.point,
                        t.operation, t.next);
  }
  return text;
}

explorer::explorer() {
  static_cast<void>(set_log_sink([](std::string_view) {}));
}

std::optional<violation> explorer::run(const scenario& program, chooser& decides, std::vector<turn>* turns,
                                       std::string* trace) {
  auto running = std::make_unique<world>(program, trace);
  threads_.on_time = [running = running.get()](std::uint64_t ns) { running->set_time(ns); };
  std::optional<violation> failure;
  const auto run_part = [&](const std::vector<scheduler::body>& bodies, chooser& choice, std::size_t first_worker) {
    if (failure) return;
    run_record record = threads_.run(bodies, choice, {.begin_ns = running->now_ns(), .first_worker = first_worker});
    points_ += record.points;
    if (&choice == &decides) {
      turns_ += record.turns.size();
      if (turns != nullptr) *turns = std::move(record.turns);
    }
    if (record.outcome == ending::finished) return;
    const bool hangs = record.outcome == ending::hung;
    failure =
        violation{rule::ends, (hangs ? "every thread waits:" : "still under way after many points:") + record.stand};
  };
  std::vector<scheduler::body> bodies;
  for (std::size_t thread = 0; thread < program.threads.size(); ++thread) {
    bodies.push_back(
        {.run = [running = running.get(), thread] { running->run(thread); }, .ends = program.setup.threads_end});
  }
  chooser alone = chooser::replay({});
  run_part({{.run = [running = running.get()] { running->prepare(); }}}, alone, program.setup.prelude_apart ? 0 : 1);
  run_part(bodies, decides, 1);
  run_part({{.run = [running = running.get()] { running->settle(); }}}, alone, 0);
  if (!failure) return running->failure();
  static_cast<void>(running.release());  // its threads stay in the middle of their calls
  return ignores(rule::ends) ? std::nullopt : failure;
}

std::optional<violation> explorer::run_seed(const scenario& program, std::uint64_t seed, std::vector<turn>* turns) {
  const std::uint64_t bits = mixed(seed);
  static constexpr unsigned percents[] = {2, 5, 10, 20, 40, 70};
  chooser decides = bits % 2 == 0
                        ? chooser::at_random(bits, percents[bits / 2 % std::size(percents)])
                        : chooser::by_priority(bits, program.threads.size(), static_cast<unsigned>(bits / 2 % 4),
                                               std::uint64_t{30} << (bits / 8 % 4));
  return run(program, decides, turns);
}

std::optional<finding> explorer::explore(topic subject, std::uint64_t first_seed,
                                         const std::function<bool(std::uint64_t)>& keep_on) {
  for (std::uint64_t n = 0; keep_on(n); ++n) {
    const std::uint64_t seed = first_seed + n;
    const scenario program = generate(subject, mixed(seed));
    std::vector<turn> turns;
    if (std::optional<violation> failure = run_seed(program, seed, &turns)) {
      return finding{*std::move(failure), program, std::move(turns), seed, n + 1};
    }
  }
  return std::nullopt;
}

std::optional<finding> explorer::explore(const scenario& program, std::uint64_t first_seed, std::uint64_t schedules) {
  for (std::uint64_t n = 0; n < schedules; ++n) {
    std::vector<turn> turns;
    if (std::optional<violation> failure = run_seed(program, first_seed + n, &turns)) {
      return finding{*std::move(failure), program, std::move(turns), first_seed + n, n + 1};
    }
  }
  return std::nullopt;
}

finding explorer::shrink(finding found) {
  const rule broken = found.broken.broken;
  std::uint64_t runs_left = 2000;
  // Tries the recorded turns, then further schedules, because a removed operation moves the points of others.
  const auto still_fails = [&](const scenario& program, const std::vector<turn>& turns, unsigned further) {
    for (unsigned n = 0; n <= further && runs_left > 0; ++n, --runs_left) {
      std::vector<turn> made;
      chooser as_recorded = chooser::replay(turns);
      const std::optional<violation> failure = n == 0 ? run(program, as_recorded, &made) : run_seed(program, n, &made);
      if (!failure || failure->broken != broken) continue;
      found.broken = *failure;
      found.program = program;
      found.turns = made;
      return true;
    }
    return false;
  };
  for (bool smaller = true; smaller;) {
    smaller = false;
    const auto remove_each = [&](auto list_of) {
      for (std::size_t i = 0; i < list_of(found.program).size();) {
        scenario program = found.program;
        auto& list = list_of(program);
        if (list[i].action == operation::kind::drain_queue) {  // the program must drain a full queue
          ++i;
          continue;
        }
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
        still_fails(program, found.turns, 20) ? smaller = true : ++i;
      }
    };
    for (std::size_t t = 0; t < found.program.threads.size(); ++t) {
      remove_each([t](scenario & edited) -> auto& { return edited.threads[t]; });
    }
    remove_each([](scenario & edited) -> auto& { return edited.prelude; });
  }
  for (std::size_t i = 0; i < found.turns.size();) {
    std::vector<turn> turns = found.turns;
    turns.erase(turns.begin() + static_cast<std::ptrdiff_t>(i));
    const std::size_t before = found.turns.size();
    if (!still_fails(found.program, turns, 0) || found.turns.size() >= before) ++i;
  }
  return found;
}

std::string explorer::trace(const finding& found) {
  std::string text;
  chooser as_recorded = chooser::replay(found.turns);
  const std::optional<violation> again = run(found.program, as_recorded, nullptr, &text);
  const bool is_same = again && again->broken == found.broken.broken;
  return is_same ? text : text + "this run kept the rule, so the program depends on more than the order of threads\n";
}

}  // namespace gpumem::schedules
