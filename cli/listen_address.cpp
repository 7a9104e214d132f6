#include "listen_address.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "text.hpp"

namespace gpumem::cli {
namespace {

status refused(const std::string& text, const std::string& why) {
  return {errc::bad_setting, fmt::format("--listen {}: {}; expected ADDRESS:PORT, such as 127.0.0.1:9843 or [::1]:9843",
                                         text.empty() ? "''" : printable(text), why)};
}

/// 0, or the errno of a socket that cannot listen there. The server's library reports none.
int listen_once(const addrinfo& where) {
  const int fd = ::socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool listens = ::bind(fd, where.ai_addr, where.ai_addrlen) == 0 && ::listen(fd, 1) == 0;
  const int error = listens ? 0 : errno;
  ::close(fd);
  return error;
}

}  // namespace

result<std::string> listen_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return refused(text, "there is no port");
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const std::string port_text = text.substr(colon + 1);
  const auto port = port_text.empty() ? std::nullopt : whole_number<std::uint16_t>(port_text);
  if (!port) return refused(text, fmt::format("'{}' is not a port from 0 to 65535", printable(port_text)));
  if (host.empty() || host.find('\0') != std::string::npos || (!bracketed && host.find(':') != std::string::npos)) {
    return refused(text, fmt::format("'{}' is not an address", printable(host)));
  }
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV | AI_PASSIVE | (bracketed ? AI_NUMERICHOST : 0);
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port_text.c_str(), &wanted, &list); error != 0) {
    return refused(text, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found{list, &::freeaddrinfo};
  if (const int error = listen_once(*found); error != 0) {
    return refused(text, fmt::format("cannot listen there: {}", std::strerror(error)));
  }
  std::array<char, NI_MAXHOST> numeric{};
  ::getnameinfo(found->ai_addr, found->ai_addrlen, numeric.data(), numeric.size(), nullptr, 0, NI_NUMERICHOST);
  const bool is_ipv6 = found->ai_family == AF_INET6;
  return fmt::format("{}{}{}:{}", is_ipv6 ? "[" : "", numeric.data(), is_ipv6 ? "]" : "", *port);
}

}  // namespace gpumem::cli
