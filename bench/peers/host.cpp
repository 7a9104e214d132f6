/// The measuring side. Each pass runs in its own child process, so that it finds the peer's library freshly initialised
/// and cannot abort other passes.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "cuda_replay_device.hpp"
#include "measure_loop.hpp"
#include "peer.hpp"
#include "protocol.hpp"

namespace gpumem::bench::peers {
namespace {

json failed(const std::string& why) { return {{"failed", why}}; }

std::string how_it_ended(int ended) {
  if (WIFSIGNALED(ended))
    return fmt::format("a pass ended by signal {} ({})", WTERMSIG(ended), strsignal(WTERMSIG(ended)));
  return fmt::format("a pass ended with status {}", WEXITSTATUS(ended));
}

bool send(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

/// Runs `pass` in a child process. Returns its result, or `{"failed": ...}`.
template <typename function>
json run_in_child(const function& pass) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return failed(fmt::format("no pipe: {}", std::strerror(errno)));
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return failed(fmt::format("no process: {}", std::strerror(errno)));
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::close(ends[0]);
    const std::string text = pass().dump();
    const bool sent = send(ends[1], text);
    ::_exit(sent ? 0 : 1);  // skips the destructors of the peer's libraries
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> piece;
  for (ssize_t n = 1; n > 0 || (n < 0 && errno == EINTR);) {
    n = ::read(ends[0], piece.data(), piece.size());
    if (n > 0) text.append(piece.data(), static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  int ended = 0;
  while (::waitpid(child, &ended, 0) < 0 && errno == EINTR) {
  }
  const json answer = json::parse(text, nullptr, false);
  return ended == 0 && answer.is_object() ? answer : failed(how_it_ended(ended));
}

/// A pass with one figure, in a child process.
json number_in_child(const std::function<result<std::optional<double>>()>& pass) {
  return run_in_child([&]() -> json {
    const auto got = pass();
    if (!got) return failed(got.why().message());
    return {{"value", *got ? json(**got) : json(nullptr)}};
  });
}

struct question {
  trace recorded;
  policy_row row;
  replay_setup setup;
};

json checked(const question& query) {
  return run_in_child([&]() -> json {
    const auto got = bench::measure_checked(query.recorded, query.row, query.setup);
    return got ? json_of(*got) : failed(got.why().message());
  });
}

json times(const question& query) {
  json failure;
  const auto once = [&](const std::function<result<std::optional<double>>()>& pass) -> result<std::optional<double>> {
    const json got = number_in_child(pass);
    if (got.contains("value")) return number_of(got["value"]);
    return status{errc::device_error, got.value("failed", "")};
  };
  const auto host =
      median_of_three([&] { return once([&] { return measure_pass(query.recorded, query.row, query.setup); }); });
  if (!host) return failed(host.why().message());
  const auto loop = once([&] { return measure_loop(query.recorded, query.row, query.setup); });
  if (!loop) return failed(loop.why().message());
  return {{"host_ns_per_op", *host ? json(**host) : json(nullptr)},
          {"loop_ns_per_op", *loop ? json(**loop) : json(nullptr)}};
}

json fit(const question& query) {
  const auto found = search_fit(
      peak_live_of(query.recorded, 1), [&](std::uint64_t capacity_bytes) -> result<std::optional<std::uint64_t>> {
        const json got = run_in_child([&]() -> json {
          const auto failed_at = try_baseline_in(query.recorded, query.row, query.setup, capacity_bytes);
          if (!failed_at) return failed(failed_at.why().message());
          return {{"at", *failed_at ? json(**failed_at) : json(nullptr)}};
        });
        if (!got.contains("at")) {
          return status{errc::device_error, fmt::format("with {} bytes: {}", capacity_bytes, got.value("failed", ""))};
        }
        return got["at"].is_null() ? std::optional<std::uint64_t>{} : std::optional{got["at"].get<std::uint64_t>()};
      });
  return found ? json_of(*found) : failed(found.why().message());
}

/// Puts all operations on one stream, for an allocator that supports only one.
void put_on_one_stream(trace& recorded) {
  recorded.streams = {0};
  for (trace_op& op : recorded.ops) op.stream = 0;
}

result<question> question_of(const json& request) {
  auto recorded = load_trace(request.at("trace").get<std::string>());
  if (!recorded) return recorded.why();
  question q;
  q.recorded = *std::move(recorded);
  if (request.at("one_stream").get<bool>()) put_on_one_stream(q.recorded);
  q.row.text = q.row.baseline = request.at("kind").get<std::string>();
  q.row.plug_in = request.at("library").get<std::string>();
  q.setup.device.capacity_bytes = request.at("capacity_bytes").get<std::uint64_t>();
  q.setup.lag_ns = request.at("lag_ns").get<std::uint64_t>();
  q.setup.shared_use = request.at("shared_use").get<double>();
  q.setup.seed = request.at("seed").get<std::uint64_t>();
  return q;
}

json answer_to(const json& request) {
  if (request.at("protocol") != 1) return failed("the request is of another version of the protocol");
  for (const auto& [name, value] : request.at("environment").items()) {
    value.is_null() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.get<std::string>().c_str(), 1);
  }
  const auto q = question_of(request);
  if (!q) return failed(q.why().message());
  // Before the first fork, so that every pass starts with the libraries loaded and unused.
  if (const status loaded = load_simulated_runtime(); !loaded) return failed(loaded.message());
  if (const status loaded = load_plug_in(q->row.plug_in); !loaded) return failed(loaded.message());
  const auto kind = request.at("what").get<std::string>();
  if (kind == "checked") return checked(*q);
  if (kind == "times") return times(*q);
  if (kind == "fit") return fit(*q);
  return failed(fmt::format("'{}' is not a request; expected checked, times or fit", kind));
}

}  // namespace

int peer_main(const std::vector<std::string>& arguments) {
  // Sends the peer's own output to standard error; standard output is for the answer only.
  const int answers = ::dup(STDOUT_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  json answer;
  try {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::string line;
    std::getline(std::cin, line);
    answer = arguments.empty() ? answer_to(json::parse(line))
                               : failed("peer takes no arguments; expected a request on standard input");
  } catch (const std::exception& e) {
    answer = failed(e.what());
  }
  const std::string text = answer.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  const bool sent = send(answers, text);
  ::_exit(sent ? 0 : 1);
}

}  // namespace gpumem::bench::peers
