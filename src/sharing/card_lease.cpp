#include "card_lease.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace gpumem {

card_lease::~card_lease() {
  if (socket_ >= 0) ::close(socket_);
}

result<card_lease> card_lease::bind(const std::string& abstract_name) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  // sun_path[0] stays 0, which makes the name abstract.
  if (abstract_name.size() + 1 > sizeof name.sun_path) {
    return status{errc::invalid_argument, fmt::format("no lease '{}': the name is too long", abstract_name)};
  }
  std::memcpy(name.sun_path + 1, abstract_name.data(), abstract_name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + abstract_name.size());
  card_lease made{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!made.held()) {
    return status{errc::unsupported, fmt::format("no lease '{}': no socket: {}", abstract_name, std::strerror(errno))};
  }
  if (::bind(made.socket_, reinterpret_cast<const sockaddr*>(&name), length) == 0) return made;
  if (errno == EADDRINUSE) return card_lease{};
  return status{errc::unsupported, fmt::format("no lease '{}': bind: {}", abstract_name, std::strerror(errno))};
}

result<card_lease> card_lease::take(std::string_view card_uuid, unsigned place) {
  return bind(fmt::format("gpumem-lease/{}/{}", bare_uuid(card_uuid), place));
}

result<card_lease> card_lease::claim(std::string_view card_uuid, std::uint64_t bytes, int pid) {
  return bind(fmt::format("gpumem-room/{}/{}/{}", bare_uuid(card_uuid), bytes, pid));
}

result<card_lease> card_lease::choosing() { return bind("gpumem-choosing"); }

status card_lease::keep_across_exec() {
  const int flags = held() ? ::fcntl(socket_, F_GETFD) : 0;
  if (held() && (flags < 0 || ::fcntl(socket_, F_SETFD, flags & ~FD_CLOEXEC) != 0)) {
    return {errc::unsupported, fmt::format("a lease cannot be kept: {}", std::strerror(errno))};
  }
  return {};
}

}  // namespace gpumem
