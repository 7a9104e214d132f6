#include "status_socket.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "text.hpp"

namespace gpumem {
namespace {

constexpr std::string_view prefix = "served-";
constexpr std::string_view suffix = ".sock";
constexpr int waiting_askers = 8;
constexpr std::string_view trim_word = "trim";
constexpr std::string_view dump_words = "dump ";
constexpr std::chrono::milliseconds longest_request{50};  // for a client that does not shut down its side
constexpr std::size_t longest_answer = std::size_t{1} << 20;

std::optional<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() + 1 > sizeof name.sun_path) return std::nullopt;
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  return name;
}

std::optional<int> pid_of(const std::string& file) {
  if (!file.starts_with(prefix) || !file.ends_with(suffix)) return std::nullopt;
  if (file.size() < prefix.size() + suffix.size()) return std::nullopt;
  const std::string_view digits =
      std::string_view{file}.substr(prefix.size(), file.size() - prefix.size() - suffix.size());
  const auto pid = whole_number<int>(digits);
  return pid && *pid > 0 ? pid : std::nullopt;
}

/// Space for the control message that passes one descriptor.
union descriptor_message {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

/// Receives as `recv` does. If `passed` is not null, stores a descriptor that comes with the bytes.
ssize_t receive(int fd, char* buffer, std::size_t bytes, owned_fd* passed) {
  if (passed == nullptr) return ::recv(fd, buffer, bytes, 0);
  iovec part{.iov_base = buffer, .iov_len = bytes};
  descriptor_message control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t got = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* const first = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (first == nullptr || first->cmsg_level != SOL_SOCKET || first->cmsg_type != SCM_RIGHTS) return got;
  const std::size_t end = first->cmsg_len - CMSG_LEN(0);  // padding may hold a second descriptor; keep the last
  for (std::size_t offset = 0; offset + sizeof(int) <= end; offset += sizeof(int)) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(first) + offset, sizeof number);
    *passed = owned_fd{number};
  }
  return got;
}

/// Sends bytes with a descriptor.
bool send_with_descriptor(int fd, std::string_view bytes, int passed) {
  std::string text{bytes};
  iovec part{.iov_base = text.data(), .iov_len = text.size()};
  descriptor_message control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  cmsghdr* const first = CMSG_FIRSTHDR(&message);
  first->cmsg_level = SOL_SOCKET;
  first->cmsg_type = SCM_RIGHTS;
  first->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(first), &passed, sizeof passed);
  return ::sendmsg(fd, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

/// Reads until the peer hangs up. Empty on an error, after `until`, or if the text is too long.
std::optional<std::string> read_all(int fd, std::chrono::steady_clock::time_point until, owned_fd* passed = nullptr) {
  std::string text;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) return std::nullopt;
    char part[4096];
    const ssize_t got = receive(fd, part, sizeof part, passed);
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    if (text.size() > longest_answer) return std::nullopt;
    text.append(part, static_cast<std::size_t>(got));
  }
}

}  // namespace

result<std::unique_ptr<status_socket>> status_socket::open(const std::string& folder,
                                                           std::function<std::string()> figures,
                                                           std::function<void()> trim, dump_function dump) {
  const std::string path = fmt::format("{}/{}{}{}", folder, prefix, ::getpid(), suffix);
  const auto refused = [&](std::string_view why) {
    return status{errc::unsupported, fmt::format("{}: {}; gpumem top will not show this process", path, why)};
  };
  const std::optional<sockaddr_un> name = address_of(path);
  if (!name) return refused("the path is too long for a socket");
  owned_fd listening{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (listening.get() < 0) return refused(std::strerror(errno));
  keep_from_forks(listening.get());
  const auto failed = [&] {
    const int error = errno;
    close_shared(std::move(listening));
    return refused(std::strerror(error));
  };
  ::unlink(path.c_str());  // left by an earlier process with this pid
  if (::bind(listening.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof *name) != 0) return failed();
  if (::chmod(path.c_str(), 0600) != 0 || ::listen(listening.get(), waiting_askers) != 0) return failed();
  return std::make_unique<status_socket>(path, std::move(listening), std::move(figures), std::move(trim),
                                         std::move(dump));
}

status_socket::status_socket(std::string path, owned_fd listening, std::function<std::string()> figures,
                             std::function<void()> trim, dump_function dump)
    : path_{std::move(path)},
      listening_{std::move(listening)},
      figures_{std::move(figures)},
      trim_{std::move(trim)},
      dump_{std::move(dump)},
      process_{::getpid()} {
  sigset_t all;  // the program's signals go to its own threads
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread{[this] { serve(); }};
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

status_socket::~status_socket() {
  leave();
  if (process_ != ::getpid()) {  // a forked child does not have the thread
    new std::thread{std::move(thread_)};
    static_cast<void>(listening_.release());
    return;
  }
  ::shutdown(listening_.get(), SHUT_RDWR);
  thread_.join();
  close_shared(std::move(listening_));
}

void status_socket::leave() noexcept {
  if (process_ == ::getpid()) ::unlink(path_.c_str());
}

std::string status_socket::answer(int asker) {
  if (trim_ || dump_) {
    owned_fd passed;
    const std::optional<std::string> request =
        read_all(asker, std::chrono::steady_clock::now() + longest_request, &passed);
    if (request && dump_ && request->starts_with(dump_words)) {
      const status done = dump_(std::string_view{*request}.substr(dump_words.size()), passed.get());
      return done ? std::string{dump_written} : done.message();
    }
    if (trim_ && request == std::string{trim_word}) trim_();
  }
  return figures_();
}

void status_socket::serve() noexcept {
  for (;;) {
    const owned_fd asker{::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    if (asker.get() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;  // shut down
    }
    const timeval patience{.tv_sec = 1, .tv_usec = 0};
    static_cast<void>(::setsockopt(asker.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience));
    const std::string text = answer(asker.get());
    for (std::size_t offset = 0; offset < text.size();) {
      const ssize_t sent = ::send(asker.get(), text.data() + offset, text.size() - offset, MSG_NOSIGNAL);
      if (sent <= 0) break;
      offset += static_cast<std::size_t>(sent);
    }
  }
}

bool ask_to_trim(const std::string& folder, int pid, std::chrono::milliseconds longest) {
  const std::optional<sockaddr_un> name = address_of(fmt::format("{}/{}{}{}", folder, prefix, pid, suffix));
  const owned_fd connection{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!name || ::connect(connection.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof *name) != 0) return false;
  if (::send(connection.get(), trim_word.data(), trim_word.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(trim_word.size())) {
    return false;
  }
  ::shutdown(connection.get(), SHUT_WR);
  return !read_all(connection.get(), std::chrono::steady_clock::now() + longest).value_or("").empty();
}

std::optional<std::string> ask_to_dump(const std::string& folder, int pid, std::string_view contents, int descriptor,
                                       std::chrono::milliseconds longest) {
  const std::optional<sockaddr_un> name = address_of(fmt::format("{}/{}{}{}", folder, prefix, pid, suffix));
  const owned_fd connection{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!name) return std::nullopt;
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof *name) != 0) {
    return errno == EAGAIN ? std::optional{std::string{}} : std::nullopt;  // EAGAIN: too many clients at once
  }
  if (!send_with_descriptor(connection.get(), std::string{dump_words}.append(contents), descriptor))
    return std::string{};
  ::shutdown(connection.get(), SHUT_WR);
  return read_all(connection.get(), std::chrono::steady_clock::now() + longest).value_or("");
}

std::vector<served_process> ask_served(const std::string& folder, std::chrono::milliseconds each) {
  std::vector<served_process> answers;
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator{folder, ignored}) {
    const std::optional<int> pid = pid_of(file.path().filename().string());
    const std::optional<sockaddr_un> name = address_of(file.path().string());
    if (!pid || !name) continue;
    const auto until = std::chrono::steady_clock::now() + each;
    const owned_fd connection{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof *name) != 0) {
      if (errno == ECONNREFUSED) ::unlink(file.path().c_str());  // its process has ended
      if (errno != EAGAIN) continue;                             // EAGAIN: too many clients at once
      answers.push_back({*pid, ""});
      continue;
    }
    ::shutdown(connection.get(), SHUT_WR);  // an empty request asks for figures
    answers.push_back({*pid, read_all(connection.get(), until).value_or("")});
  }
  std::sort(answers.begin(), answers.end(),
            [](const served_process& lhs, const served_process& rhs) { return lhs.pid < rhs.pid; });
  return answers;
}

}  // namespace gpumem
