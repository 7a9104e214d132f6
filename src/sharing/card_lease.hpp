// A lease on a card: a short word between programs that start at the same moment, across users, that dies with its
// holder.
//
// It is an abstract Unix socket named after the card and a place on it; the kernel lets one process bind a name and
// frees it with the last descriptor. A claim is one that is named after the card, the room and the process instead. It
// orders programs that ask for one (`auto`), and locks nobody out of a card. Abstract names belong to a network
// namespace: containers with one of their own do not see each other's leases.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "gpumem/status.hpp"

namespace gpumem {

/// A card's name without `GPU-` or `MIG-`: CUDA may call `GPU-x` what NVML calls `MIG-x`.
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

  /// Whoever has place 0 on a card is alone on it, as far as leases tell. `ok` and nothing held where somebody else has
  /// the place; an error where there can be no lease at all.
  static result<card_lease> take(std::string_view card_uuid, unsigned place);
  /// Tells others that process `pid` was promised `bytes` of a card (`room_claims.hpp`); 0: nobody knows how much.
  static result<card_lease> claim(std::string_view card_uuid, std::uint64_t bytes, int pid);
  /// Held by the one program of the machine that is choosing; not held where another one is.
  static result<card_lease> choosing();
  [[nodiscard]] bool held() const noexcept { return socket_ >= 0; }
  /// Keeps the lease for what this process becomes with `exec`, and for its children.
  status keep_across_exec();
  /// Nobody gives it back before the process ends.
  void keep_until_exit() noexcept { socket_ = -1; }

 private:
  static result<card_lease> bind(const std::string& abstract_name);
  explicit card_lease(int bound) noexcept : socket_{bound} {}
  int socket_ = -1;
};

}  // namespace gpumem
