// A lease on a card: a short word between programs that start at the same moment, across users, that dies with its
// holder.
//
// It is an abstract Unix socket named after the card and a place on it; the kernel lets one process bind a name and
// frees it with the last descriptor. It orders programs that ask for one (`auto`), and locks nobody out of a card.
// Abstract names belong to a network namespace: containers with one of their own do not see each other's leases.
#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include "gpumem/status.hpp"

namespace gpumem {

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
  [[nodiscard]] bool held() const noexcept { return socket_ >= 0; }
  /// Keeps the lease for what this process becomes with `exec`, and for its children.
  status keep_across_exec();
  /// Nobody gives it back before the process ends.
  void keep_until_exit() noexcept { socket_ = -1; }

 private:
  explicit card_lease(int bound) noexcept : socket_{bound} {}
  int socket_ = -1;
};

}  // namespace gpumem
