// A lease on a card: keeps programs that start at the same moment on different cards, across users, and ends with its
// holder.
//
// A lease is an abstract Unix socket named after the card and a place on it. The kernel lets one process bind a name
// and frees it with the last descriptor. A claim is such a socket named after the card, the room and the process.
// Leases only order programs that ask for one (`auto`); they lock nobody out of a card. Abstract names belong to a
// network namespace, so containers with their own do not see each other's leases.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "gpumem/status.hpp"

namespace gpumem {

/// A UUID without `GPU-` or `MIG-`, because CUDA's `GPU-x` may be NVML's `MIG-x`.
[[nodiscard]] inline std::string_view bare_uuid(std::string_view uuid) {
  return uuid.starts_with("GPU-") || uuid.starts_with("MIG-") ? uuid.substr(4) : uuid;
}

class card_lease {
 public:
  card_lease() noexcept = default;
  card_lease(card_lease&& other) noexcept : socket_{std::exchange(other.socket_, -1)} {}
  card_lease& operator=(card_lease&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
  }
  ~card_lease();

  /// Tries to take a place on a card. Place 0 means that no other lease holder uses the card. Returns an empty lease if
  /// another process has the place, and an error if leases are impossible.
  static result<card_lease> take(std::string_view card_uuid, unsigned place);
  /// Claims `bytes` of a card for process `pid` (`room_claims.hpp`); 0 for an unknown amount.
  static result<card_lease> claim(std::string_view card_uuid, std::uint64_t bytes, int pid);
  /// The lock of the one program of the machine that may choose cards; empty if another program holds it.
  static result<card_lease> choosing();
  [[nodiscard]] bool held() const noexcept { return socket_ >= 0; }
  /// Keeps the lease across `exec` and for child processes.
  status keep_across_exec();
  /// Keeps the lease until the process ends.
  void keep_until_exit() noexcept { socket_ = -1; }

 private:
  static result<card_lease> bind(const std::string& abstract_name);
  explicit card_lease(int bound) noexcept : socket_{bound} {}
  int socket_ = -1;
};

}  // namespace gpumem
