// Room on a card that programs were promised and need not use yet: what keeps two that wait for the same room apart.
//
// A claim is an abstract Unix socket that its program holds, as a lease is; /proc/net/unix lists them for every user.
// They are looked at and made by one program at a time (`card_lease::choosing`).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "card_placement.hpp"
#include "gpumem/gpu_usage.hpp"

namespace gpumem {

struct room_claim {
  std::string uuid;         ///< bare
  std::uint64_t bytes = 0;  ///< 0: not known
  int pid = 0;
  std::uint64_t inode = 0;  ///< of the socket
};

/// All in this network namespace.
[[nodiscard]] std::vector<room_claim> claims_now();

/// Fills `claims` and `promised_bytes` of each card. What a claim's program, or a descendant of it, has in use is taken
/// off; where NVML does not tell, nothing is, so that a card never looks emptier than it is. Claims of this process and
/// of those it descends from do not count.
void count_claims(std::span<card_state> cards, std::span<const room_claim> claims, std::span<const gpu_usage> usage);

}  // namespace gpumem
