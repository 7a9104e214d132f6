#include "card_claims.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <set>

#include "process_files.hpp"

namespace gpumem {
namespace {

constexpr int most_generations = 64;
constexpr std::uint64_t longest_silence_ns = 30'000'000'000;

std::uint64_t saturating_sum(std::uint64_t left, std::uint64_t right) noexcept {
  return left + std::min(right, std::numeric_limits<std::uint64_t>::max() - left);
}

/// A pid means the same process only in the same namespace.
bool is_in_this_pid_space(const card_claim& claim) {
  return claim.pid_space != 0 && claim.pid_space == own_pid_space();
}

/// The memory used by the claim's program and its children.
std::uint64_t used_by(const card_claim& claim, std::span<const gpu_usage> usage) {
  std::uint64_t bytes = 0;
  if (!is_in_this_pid_space(claim)) return bytes;
  for (const gpu_usage& card : usage) {
    if (bare_uuid(card.uuid) != claim.uuid) continue;
    for (const gpu_process& each : card.processes) {
      if (!descends_from(static_cast<int>(each.pid), claim.pid)) continue;
      bytes = saturating_sum(bytes, each.used_bytes.value_or(0));
    }
  }
  return bytes;
}

bool has_looked_lately(const card_claim& claim, std::uint64_t now_ns) noexcept {
  return claim.seen_ns >= now_ns || now_ns - claim.seen_ns < longest_silence_ns;
}

/// Returns the card's memory less the waiting program's request, less the claims given since it began to wait, less the
/// use of programs without a claim.
std::uint64_t left_beside(const card_claim& waiter, const card_state& card, std::span<const card_claim* const> claims) {
  const std::uint64_t used = card.total_bytes - std::min(card.total_bytes, card.free_bytes);
  std::uint64_t taken = saturating_sum(waiter.bytes, used - std::min(used, card.claimed_bytes));
  for (const card_claim* claim : claims) {
    if (!claim->waiting && claim->since_ns > waiter.since_ns) taken = saturating_sum(taken, claim->bytes);
  }
  return card.total_bytes - std::min(card.total_bytes, taken);
}

/// Requires that `claims` are other programs' claims on this card.
void count_on_card(card_state& card, std::span<const card_claim* const> claims, std::span<const gpu_usage> usage,
                   std::uint64_t since_ns, std::uint64_t now_ns) {
  for (const card_claim* claim : claims) {
    if (claim->waiting) continue;
    ++card.claims;
    card.claimed_bytes = saturating_sum(card.claimed_bytes, claim->bytes);
    card.promised_bytes =
        saturating_sum(card.promised_bytes, claim->bytes - std::min(claim->bytes, used_by(*claim, usage)));
  }
  for (const card_claim* claim : claims) {
    if (!claim->waiting || claim->since_ns >= since_ns || !has_looked_lately(*claim, now_ns)) continue;
    const std::uint64_t left = left_beside(*claim, card, claims);
    card.left_beside_waiters = std::min(left, card.left_beside_waiters.value_or(left));
  }
}

}  // namespace

bool descends_from(int pid, int ancestor) {
  for (int i = 0; i < most_generations && pid > 0; ++i) {
    if (pid == ancestor) return true;
    pid = parent_of(fmt::format("/proc/{}", pid));
  }
  return false;
}

void count_claims(std::span<card_state> cards, std::span<const card_claim> claims, std::span<const gpu_usage> usage,
                  std::uint64_t since_ns, std::uint64_t now_ns) {
  std::vector<const card_claim*> foreign_claims;
  for (const card_claim& claim : claims) {
    if (!is_in_this_pid_space(claim) || !descends_from(::getpid(), claim.pid)) foreign_claims.push_back(&claim);
  }
  for (card_state& card : cards) {
    std::set<unsigned> places;
    for (const card_claim& claim : claims) {
      if (claim.place && claim.uuid == bare_uuid(card.uuid)) places.insert(*claim.place);
    }
    while (places.contains(card.next_place)) ++card.next_place;
    std::vector<const card_claim*> claims_on_card;
    for (const card_claim* claim : foreign_claims) {
      if (claim->uuid == bare_uuid(card.uuid)) claims_on_card.push_back(claim);
    }
    count_on_card(card, claims_on_card, usage, since_ns, now_ns);
  }
}

}  // namespace gpumem
