/// A simulated working day: four users share one machine, and each job picks a card.
///
/// No driver is called. The rule `auto` runs the code of GPUMEM_DEVICES=auto (place_on_cards) with its leases, on the
/// figures that NVML would report for the simulated cards. The rule by hand picks among the cards that show no memory
/// in use when the user looks; the job takes its memory later.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "bits.hpp"
#include "card_claims.hpp"
#include "card_placement.hpp"
#include "claim.hpp"
#include "random_numbers.hpp"

namespace gpumem::bench {
namespace {

constexpr std::size_t users = 4;
constexpr std::size_t card_count = 4;
constexpr double day_s = 10 * 3600.0;
constexpr double job_s = 45 * 60.0;    ///< mean length of a job
constexpr double pause_s = 20 * 60.0;  ///< mean time between the end of a user's job and the next look
constexpr double to_start_s = 90;  ///< mean time from the choice until the program takes memory: typing, imports, data
constexpr std::uint64_t job_bytes = 20 * gib;  ///< on a card of 80 GiB
constexpr std::size_t days = 200;

enum class rule : std::uint8_t { first_card, first_idle, any_idle, automatic };
constexpr std::array<std::pair<rule, std::string_view>, 4> rules{
    {{rule::first_card, "everyone takes card 0, the default"},
     {rule::first_idle, "by hand, the first that looks idle"},
     {rule::any_idle, "by hand, any that looks idle"},
     {rule::automatic, "GPUMEM_DEVICES=auto"}}};

struct job {
  double seen_s = 0;   ///< time of the choice
  double start_s = 0;  ///< time from which its memory shows as in use
  double end_s = 0;
  std::size_t card = 0;
  std::vector<card_claim> leases{};  ///< held by `auto` until the job ends
};

struct tally {
  std::size_t jobs = 0;
  std::size_t collisions = 0;  ///< jobs started on a card in use while another was idle
};

double exponential(random_numbers& random, double mean) { return -mean * std::log(1 - random.share()); }

std::size_t pick_by_hand(rule selection, const std::vector<job>& all, double time_s, random_numbers& random) {
  std::array<std::size_t, card_count> in_use{};
  for (const job& each : all) {
    if (each.start_s <= time_s && time_s < each.end_s) ++in_use[each.card];
  }
  const auto fewest = static_cast<std::size_t>(std::min_element(in_use.begin(), in_use.end()) - in_use.begin());
  if (selection == rule::first_card) return 0;
  if (selection != rule::any_idle) return fewest;
  std::vector<std::size_t> idle;
  for (std::size_t i = 0; i < card_count; ++i) {
    if (in_use[i] == in_use[fewest]) idle.push_back(i);
  }
  return idle[random.below(idle.size())];
}

/// The choice of GPUMEM_DEVICES=auto, given the memory that shows as in use at this moment.
void place_by_auto(const std::vector<job>& all, double time_s, job& placed_job) {
  std::vector<card_state> visible(card_count);
  for (std::size_t i = 0; i < card_count; ++i) {
    visible[i].uuid = fmt::format("GPU-simulated-day-{}", i);
    visible[i].free_bytes = 80 * gib;
    visible[i].known = true;
  }
  std::vector<card_claim> leases;
  for (const job& each : all) {
    leases.insert(leases.end(), each.leases.begin(), each.leases.end());
    if (each.start_s > time_s || time_s >= each.end_s) continue;
    ++visible[each.card].processes;
    visible[each.card].free_bytes -= job_bytes;
  }
  count_claims(visible, leases, {}, 0, 0);
  device_choice asked;
  asked.how = device_choice::kind::automatic;
  placement placed = need(place_on_cards(asked, visible, false));
  placed_job.card = placed.cards[0];
  placed_job.leases.push_back(
      {.uuid = std::string{bare_uuid(visible[placed_job.card].uuid)}, .place = placed.places[0]});
}

/// Simulates one day. Choices are made in order of time, and each rule gets the same random numbers.
void simulate_day(rule selection, std::uint64_t seed, tally& counts) {
  struct look {
    double at_s;
    double to_start;
    double length;
  };
  std::vector<look> looks;
  random_numbers random{seed};
  for (std::size_t user = 0; user < users; ++user) {
    for (double time_s = exponential(random, pause_s); time_s < day_s;) {
      const look next{time_s, exponential(random, to_start_s), exponential(random, job_s)};
      looks.push_back(next);
      time_s += next.to_start + next.length + exponential(random, pause_s);
    }
  }
  std::sort(looks.begin(), looks.end(), [](const look& lhs, const look& rhs) { return lhs.at_s < rhs.at_s; });
  std::vector<job> all;
  for (const look& each : looks) {
    const double start = each.at_s + each.to_start;
    job next{each.at_s, start, start + each.length};
    if (selection == rule::automatic) {
      for (job& former : all) {
        if (former.end_s <= each.at_s) former.leases.clear();
      }
      place_by_auto(all, each.at_s, next);
    } else {
      next.card = pick_by_hand(selection, all, each.at_s, random);
    }
    all.push_back(std::move(next));
  }
  for (const job& each : all) {
    std::array<std::size_t, card_count> other_jobs{};
    for (const job& candidate : all) {
      if (&candidate != &each && candidate.start_s <= each.start_s && each.start_s < candidate.end_s)
        ++other_jobs[candidate.card];
    }
    ++counts.jobs;
    const bool another_was_idle = std::find(other_jobs.begin(), other_jobs.end(), std::size_t{0}) != other_jobs.end();
    counts.collisions += other_jobs[each.card] > 0 && another_was_idle ? 1U : 0U;
  }
}

findings four_users(const claim_setup& setup) {
  findings found;
  std::array<tally, rules.size()> counted{};
  for (std::size_t i = 0; i < rules.size(); ++i) {
    for (std::uint64_t day = 0; day < days; ++day) {
      simulate_day(rules[i].first, setup.replay.seed * 1000 + day, counted[i]);
    }
    found.figures.push_back(
        {{"rule", rules[i].second}, {"days", days}, {"jobs", counted[i].jobs}, {"collisions", counted[i].collisions}});
  }
  found.measured = fmt::format(
      "In {} days with {} jobs, {} started on a card in use though another was idle with the default, {} with the "
      "first that looks idle, {} "
      "with any that looks idle, {} with auto.",
      days, counted[0].jobs, counted[0].collisions, counted[1].collisions, counted[2].collisions,
      counted[3].collisions);
  std::size_t fewer = 0;
  for (const std::size_t i : {0U, 1U, 2U}) fewer += counted[3].collisions < counted[i].collisions ? 1U : 0U;
  found.outcome = verdict_of(fewer, 3);
  return found;
}

}  // namespace

std::vector<claim> day_claims() {
  return {
      {.id = "auto-avoids-collisions",
       .statement = "Looking for the idle card by hand leads to collisions that choosing one automatically avoids.",
       .source = "Guides for shared machines: look at nvidia-smi, then set CUDA_VISIBLE_DEVICES.",
       .experiment =
           "Four users on four cards, 200 simulated days of ten hours: jobs of 45 minutes, pauses of 20 minutes, "
           "90 seconds from "
           "the look until the program holds memory (means of exponential distributions, all assumed). A job "
           "collides that "
           "starts on a card in use while another is idle. Under auto the library itself chooses, and takes leases of "
           "this machine's kernel. It holds where auto has fewer than each other rule.",
       .expected = "By hand two users who look within the same 90 seconds take the same card; auto never collides, "
                   "since its lease is there at once.",
       .run = four_users}};
}

}  // namespace gpumem::bench
