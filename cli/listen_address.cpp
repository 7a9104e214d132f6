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
  return {errc::bad_setting, fmt::format("--listen {}: {}; expected ADDRESS:PORT, such as 127.0.0.1:9843",
                                         text.empty() ? "''" : printable(text), why)};
}

/// Tries to listen on the address. Returns 0 or the errno, which the server's library does not report.
int listen_once(const addrinfo& where) {
  const int fd = ::socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int enabled = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &enabled, sizeof enabled);
  const bool listens = ::bind(fd, where.ai_addr, where.ai_addrlen) == 0 && ::listen(fd, 1) == 0;
  const int error = listens ? 0 : errno;
  ::close(fd);
  return error;
}

}  // namespace

result<std::string> listen_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return refused(text, "there is no port");
  const std::string host = text.substr(0, colon);
  const std::string port_text = text.substr(colon + 1);
  const auto port = port_text.empty() ? std::nullopt : whole_number<std::uint16_t>(port_text);
  if (!port) return refused(text, fmt::format("'{}' is not a port from 0 to 65535", printable(port_text)));
  // The distributions build the server's library (CivetWeb) without IPv6.
  if (host.find(':') != std::string::npos) return refused(text, "the exporter serves IPv4 addresses only");
  if (host.empty()) return refused(text, "there is no address");
  addrinfo wanted{};
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
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
  return fmt::format("{}:{}", numeric.data(), *port);
}

}  // namespace gpumem::cli
