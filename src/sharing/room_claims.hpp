// Memory on a card that is promised to programs but not used yet, so that two programs that wait for the same room do
// not both get it.
//
// Like a lease, a claim is an abstract Unix socket that its program holds; /proc/net/unix lists them for every user.
// One program at a time reads and creates claims (`card_lease::choosing`).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "card_placement.hpp"
#include "gpumem/gpu_usage.hpp"

namespace gpumem {

struct room_claim {
  std::string uuid;         ///< without prefix
  std::uint64_t bytes = 0;  ///< 0: not known
  int pid = 0;
  std::uint64_t inode = 0;  ///< of the socket
};

/// All claims in this network namespace.
[[nodiscard]] std::vector<room_claim> claims_now();

/// Fills `claims` and `promised_bytes` of each card. Deducts the memory that a claim's program and its descendants use;
/// if NVML does not report it, deducts nothing, so that a card never looks emptier than it is. Ignores claims of this
/// process and its ancestors.
void count_claims(std::span<card_state> cards, std::span<const room_claim> claims, std::span<const gpu_usage> usage);

}  // namespace gpumem
