// Computes the room, the place for a lease and the turn that the claims of other programs leave on each card.
#pragma once

#include <cstdint>
#include <span>

#include "card_placement.hpp"
#include "claim_table.hpp"
#include "gpumem/gpu_usage.hpp"

namespace gpumem {

/// Fills the fields of each card that come from claims. Deducts from a claim the memory that its program and the
/// program's descendants use. If NVML does not report that, or the program is in another PID namespace, deducts
/// nothing, so that a card never looks emptier than it is. Ignores claims of this process and its ancestors, but not
/// the places of their leases. A waiting program has precedence if it began before `since_ns` and has looked within 30
/// s of `now_ns`.
void count_claims(std::span<card_state> cards, std::span<const card_claim> claims, std::span<const gpu_usage> usage,
                  std::uint64_t since_ns, std::uint64_t now_ns);

/// Whether `pid` is `ancestor` or descends from it.
[[nodiscard]] bool descends_from(int pid, int ancestor);

}  // namespace gpumem
