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

result<card_lease> card_lease::take(std::string_view card_uuid, unsigned place) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  // CUDA may call `GPU-x` what NVML calls `MIG-x`: the prefix is no part of the name.
  if (card_uuid.starts_with("GPU-") || card_uuid.starts_with("MIG-")) card_uuid.remove_prefix(4);
  // sun_path[0] stays 0: an abstract name, which is no file.
  const std::string text = fmt::format("gpumem-lease/{}/{}", card_uuid, place);
  if (text.size() + 1 > sizeof name.sun_path) {
    return status{errc::invalid_argument, fmt::format("no lease on '{}': the name is too long", card_uuid)};
  }
  std::memcpy(name.sun_path + 1, text.data(), text.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  card_lease made{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!made.held()) {
    return status{errc::unsupported, fmt::format("no lease on {}: no socket: {}", card_uuid, std::strerror(errno))};
  }
  if (::bind(made.socket_, reinterpret_cast<const sockaddr*>(&name), length) == 0) return made;
  if (errno == EADDRINUSE) return card_lease{};
  return status{errc::unsupported, fmt::format("no lease on {}: bind: {}", card_uuid, std::strerror(errno))};
}

status card_lease::keep_across_exec() {
  const int flags = held() ? ::fcntl(socket_, F_GETFD) : 0;
  if (held() && (flags < 0 || ::fcntl(socket_, F_SETFD, flags & ~FD_CLOEXEC) != 0)) {
    return {errc::unsupported, fmt::format("a lease cannot be kept: {}", std::strerror(errno))};
  }
  return {};
}

}  // namespace gpumem
