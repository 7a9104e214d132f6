#include "chooser.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace gpumem::schedules {

chooser chooser::at_random(std::uint64_t seed, unsigned percent) {
  chooser made{way::random, seed};
  made.percent_ = percent;
  return made;
}

chooser chooser::by_priority(std::uint64_t seed, std::size_t threads, unsigned changes, std::uint64_t points) {
  chooser made{way::priority, seed};
  made.priorities_.resize(threads);
  std::iota(made.priorities_.begin(), made.priorities_.end(), 1);
  std::ranges::shuffle(made.priorities_, made.random_);
  for (unsigned i = 0; i < changes; ++i)
    made.changes_.push_back(1 + made.random_() % std::max<std::uint64_t>(points, 1));
  std::ranges::sort(made.changes_, std::greater{});
  return made;
}

chooser chooser::replay(std::vector<turn> turns) {
  chooser made{way::replay, 0};
  made.turns_ = std::move(turns);
  return made;
}

std::uint32_t chooser::usual(const position& place, const std::vector<std::uint32_t>& runnable) noexcept {
  if (place.can_go_on && !place.yields) return place.thread;
  const auto after = std::ranges::upper_bound(runnable, place.thread);
  return after != runnable.end() ? *after : runnable.front();
}

std::uint32_t chooser::choose(const position& place, const std::vector<std::uint32_t>& runnable) {
  switch (kind_) {
    case way::random: {
      const bool stays = place.can_go_on && !place.yields && random_() % 100 >= percent_;
      return stays ? place.thread : runnable[random_() % runnable.size()];
    }
    case way::priority:
      return by_priority(place, runnable);
    case way::replay:
      break;
  }
  for (const turn& each : turns_) {
    if (each.thread != place.thread || each.operation != place.operation || each.point != place.point) continue;
    if (std::ranges::binary_search(runnable, each.next)) return each.next;
  }
  return usual(place, runnable);
}

std::uint32_t chooser::by_priority(const position& place, const std::vector<std::uint32_t>& runnable) {
  ++points_;
  const bool changes = !changes_.empty() && changes_.back() <= points_;
  if (changes) changes_.pop_back();
  // Otherwise a spinning thread would keep the thread for which it waits from running.
  if (changes || place.yields) priorities_[place.thread] = --lowest_;
  return *std::ranges::max_element(runnable, {}, [this](std::uint32_t thread) { return priorities_[thread]; });
}

}  // namespace gpumem::schedules
