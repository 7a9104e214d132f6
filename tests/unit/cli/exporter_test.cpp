// `gpumem exporter` and `gpumem top --prometheus`: the figures of `top --json` of the same machine, by HTTP and as a
// file.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "metrics_text.hpp"
#include "program.hpp"
#include "prometheus_text.hpp"
#include "published_figures.hpp"
#include "shared_folder.hpp"
#include "status_socket.hpp"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using json = nlohmann::json;
namespace fs = std::filesystem;

/// The answer of the server on this port of 127.0.0.1; empty if it hangs up.
std::string http_get(int port, const std::string& target) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) {
    const std::string request = "GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    std::array<char, 4096> piece;
    for (ssize_t got = 0; (got = ::recv(fd, piece.data(), piece.size(), 0)) > 0;) {
      answer.append(piece.data(), static_cast<std::size_t>(got));
    }
  }
  ::close(fd);
  return answer;
}

std::string body_of(const std::string& answer) {
  const std::size_t at = answer.find("\r\n\r\n");
  return at == std::string::npos ? "" : answer.substr(at + 4);
}

/// Whether a process has a child.
bool has_child(pid_t parent) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator{"/proc", ignored}) {
    std::ifstream in{entry.path() / "stat"};
    std::string text;
    std::getline(in, text);
    const std::size_t name_end = text.rfind(") ");  // "pid (name) state parent ..."
    if (name_end == std::string::npos) continue;
    std::istringstream rest{text.substr(name_end + 4)};
    pid_t of = 0;
    if (rest >> of && of == parent) return true;
  }
  return false;
}

class Exporter : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    ASSERT_TRUE(shared_folder(path("shared")).ok());
    ASSERT_TRUE(options_.set("policy", "caching").ok());
    ASSERT_TRUE(options_.set("limit", "10GiB").ok());
    device* devices[]{&gpu_};
    auto made = allocator::open(devices, options_);
    ASSERT_TRUE(made.ok());
    served_ = *std::move(made);
    held_ = served_->allocate(300 * mib);
    auto socket = status_socket::open(path("shared"), [this] {
      const allocator* const all[]{served_.get()};
      return published_figures(all, options_);
    });
    ASSERT_TRUE(socket.ok()) << socket.why().message();
    socket_ = *std::move(socket);
    machine_ = four_cards +
               " FAKENVML_USED=1=2048 FAKENVML_BUSY=1=70 FAKENVML_PIDS=1=1 FAKENVML_MIG=3=2 FAKENVML_CELSIUS=1=61"
               " FAKENVML_WATTS=1=250";
  }
  void TearDown() override {
    if (exporter_ > 0) {
      ::kill(exporter_, SIGKILL);
      ::waitpid(exporter_, nullptr, 0);
    }
    if (served_ != nullptr && held_ != nullptr) served_->deallocate(held_);
    Program::TearDown();
  }

  /// Starts an exporter at any free port, and returns the port; 0 if it ends instead.
  int start(const std::string& environment) {
    const std::string command = "exec env -i PATH=\"$PATH\" GPUMEM_SHARED_FOLDER='" + path("shared") + "' " +
                                environment + " '" + path("bin/gpumem") + "' exporter --listen 127.0.0.1:0 >'" +
                                path("out") + "' 2>'" + path("err") + "' </dev/null";
    exporter_ = ::fork();
    if (exporter_ == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    const std::string begin = "gpumem: exporter: serving http://127.0.0.1:";
    for (;;) {
      const std::string said = content_of(path("err"));
      if (said.ends_with("/metrics\n")) {
        EXPECT_THAT(said, StartsWith(begin));
        return std::stoi(said.substr(begin.size()));
      }
      if (::waitpid(exporter_, nullptr, WNOHANG) == exporter_) {
        ADD_FAILURE() << "it ended: " << said;
        exporter_ = 0;
        return 0;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    }
  }
  /// Sends the signal and returns the exit status; -1 if a signal ended it.
  int end(int number) {
    int ended = 0;
    ::kill(exporter_, number);
    ::waitpid(exporter_, &ended, 0);
    exporter_ = 0;
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  }

  sim_device gpu_;
  settings options_;
  std::unique_ptr<allocator> served_;
  std::unique_ptr<status_socket> socket_;
  void* held_ = nullptr;
  std::string machine_;  ///< nothing of it changes during a test
  pid_t exporter_ = 0;
};

TEST_F(Exporter, AScrapeHasTheFiguresOfTopAsJson) {
  const outcome as_json = run("top --once --json", machine_);
  ASSERT_EQ(as_json.exit_status, 0) << as_json.err;
  const json all = json::parse(as_json.out);
  const outcome as_metrics = run("top --prometheus", machine_);
  EXPECT_EQ(as_metrics.exit_status, 0) << as_metrics.err;
  const result<std::string> expected = prometheus_text(all);
  ASSERT_TRUE(expected.ok());
  EXPECT_EQ(as_metrics.out, *expected);

  const std::string pid = std::to_string(::getpid());
  const metrics_text got = parse_metrics(as_metrics.out);
  EXPECT_EQ(got.value_of("gpumem_pool_live_bytes", {{"process_pid", pid}, {"policy", "caching"}}), 300 * mib);
  EXPECT_EQ(got.value_of("gpumem_pool_limit_bytes", {{"process_pid", pid}}), 10 * gib);
  EXPECT_EQ(got.value_of("hw_gpu_memory_usage_bytes", {{"hw_id", uuid(1)}}), 2 * gib);
  EXPECT_EQ(got.value_of("hw_temperature_celsius", {{"hw_name", "GPU 1"}}), 61);
  EXPECT_EQ(got.count("hw_temperature_celsius", {}), 1U) << "the other cards do not tell";
  EXPECT_EQ(got.count("hw_gpu_memory_limit_bytes", {{"hw_parent", uuid(3)}}), 2U);

  const int port = start(machine_);
  ASSERT_GT(port, 0);
  for (int scrape = 0; scrape < 2; ++scrape) {
    const std::string answer = http_get(port, "/metrics");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(answer, HasSubstr("text/plain"));
    EXPECT_THAT(body_of(answer), HasSubstr(*expected)) << "beside metrics of the server itself";
    static_cast<void>(parse_metrics(body_of(answer)));
  }
  EXPECT_EQ(end(SIGTERM), 0);
}

TEST_F(Exporter, ACommandLineIsNotExported) {
  const json all = json::parse(run("top --once --json", machine_).out);
  const std::string command = all["served"][0]["command"];
  ASSERT_THAT(command, HasSubstr("/")) << "of this test, with its path";
  EXPECT_THAT(run("top --prometheus", machine_).out, Not(HasSubstr(command)));
}

TEST_F(Exporter, EndsAtSigintAndServesNothingElse) {
  const int port = start(machine_);
  ASSERT_GT(port, 0);
  for (const char* target : {"/", "/metrics/..", "/../../etc/passwd", "/metric"}) {
    EXPECT_THAT(http_get(port, target), Not(HasSubstr(" 200 "))) << target;
  }
  EXPECT_EQ(end(SIGINT), 0);
  EXPECT_EQ(http_get(port, "/metrics"), "");
  EXPECT_EQ(content_of(path("out")), "");
}

TEST_F(Exporter, FollowsTheMachineAndGoesOnWithoutNvml) {
  const int port = start("GPUMEM_NVML=/no/nvml");
  ASSERT_GT(port, 0);
  const metrics_text first = parse_metrics(body_of(http_get(port, "/metrics")));
  EXPECT_EQ(first.value_of("gpumem_nvml_up", {}), 0);
  EXPECT_EQ(first.value_of("gpumem_pool_live_bytes", {}), 300 * mib);
  served_->deallocate(std::exchange(held_, nullptr));
  const metrics_text second = parse_metrics(body_of(http_get(port, "/metrics")));
  EXPECT_EQ(second.value_of("gpumem_up", {}), 1);
  EXPECT_EQ(second.value_of("gpumem_pool_live_bytes", {}), 0);
  EXPECT_EQ(end(SIGTERM), 0);
}

// NVML hangs if a card hangs. A scrape must not keep the exporter from ending.
TEST_F(Exporter, EndsDuringALookThatHangs) {
  const int port = start(machine_ + " FAKENVML_HANG=1");
  ASSERT_GT(port, 0);
  std::future<std::string> scrape = std::async(std::launch::async, http_get, port, "/metrics");
  while (!has_child(exporter_)) std::this_thread::sleep_for(std::chrono::milliseconds{10});
  EXPECT_EQ(end(SIGTERM), 0);
  EXPECT_EQ(parse_metrics(body_of(scrape.get())).value_of("gpumem_up", {}), 0);
  EXPECT_THAT(content_of(path("err")), Not(HasSubstr("did not end"))) << "it was ended";
}

TEST_F(Exporter, AnAddressThatIsNoneIsRefused) {
  for (const char* address : {"''", "9843", "localhost", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1",
                              "127.0.0.1:65536", ":9843", "[::1:9843", "::1:9843", "[127.0.0.1.5]:9843",
                              "127.0.0.256:1", "127.0.0.1:9843,127.0.0.1:9844", "127.0.0.1:9843s", "a:b:c"}) {
    expect_refused(std::string{"exporter --listen "} + address, 2, "expected ADDRESS:PORT");
  }
  expect_refused("exporter --listen", 2, "--listen");
  for (const char* address : {"'[::1]:0'", "'[::]:9843'", "::1:9843"}) {
    expect_refused(std::string{"exporter --listen "} + address, 2, "the exporter serves IPv4 addresses only");
  }
}

TEST_F(Exporter, AnAddressThatCannotBeBoundIsRefused) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof here;
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&here), size), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &size), 0);
  expect_refused("exporter --listen 127.0.0.1:" + std::to_string(ntohs(here.sin_port)), 2, "Address already in use");
  ::close(fd);
  expect_refused("exporter --listen 192.0.2.1:9843", 2, "Cannot assign requested address");
}

class Textfile : public Exporter {
 protected:
  [[nodiscard]] std::string folder() const { return path("textfiles"); }
  void SetUp() override {
    Exporter::SetUp();
    fs::create_directory(folder());
  }
  ino_t inode_of(const std::string& file) {
    struct stat s {};
    EXPECT_EQ(::stat(file.c_str(), &s), 0);
    return s.st_ino;
  }
};

TEST_F(Textfile, IsReplacedAsAWhole) {
  const std::string file = folder() + "/gpumem.prom";
  const std::string command = "top --prometheus --output '" + file + "'";
  ASSERT_EQ(run(command, machine_).exit_status, 0);
  EXPECT_EQ(content_of(file), run("top --prometheus", machine_).out);
  EXPECT_EQ(fs::status(file).permissions() & fs::perms::others_read, fs::perms::others_read)
      << "node_exporter is another user";
  fs::create_hard_link(file, path("first"));  // keeps the first file, with its inode
  const std::string before = content_of(file);
  served_->deallocate(std::exchange(held_, nullptr));
  const outcome again = run(command, machine_);
  EXPECT_EQ(again.exit_status, 0) << again.err;
  EXPECT_EQ(again.out, "");
  EXPECT_NE(inode_of(file), inode_of(path("first"))) << "a reader of the first file still has it";
  EXPECT_EQ(content_of(path("first")), before);
  EXPECT_EQ(parse_metrics(content_of(file)).value_of("gpumem_pool_live_bytes", {}), 0);
  EXPECT_EQ(std::distance(fs::directory_iterator{folder()}, fs::directory_iterator{}), 1)
      << "nothing is left beside it";
}

TEST_F(Textfile, WithoutNvmlItIsWrittenAndTheStatusIsOne) {
  EXPECT_EQ(run("top --prometheus --output '" + folder() + "/a.prom'", "GPUMEM_NVML=/no/nvml").exit_status, 1);
  EXPECT_EQ(parse_metrics(content_of(folder() + "/a.prom")).value_of("gpumem_nvml_up", {}), 0);
}

TEST_F(Textfile, ThatCannotBeWrittenIsRefused) {
  for (const std::string& file : {path("missing/a.prom"), folder(), std::string{"/dev/null"}, std::string{"/proc/a"}}) {
    expect_refused("top --prometheus --output '" + file + "'", 2, "--output " + file, machine_);
  }
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  expect_refused("top --prometheus --output ''", 2, "expected a file");
  expect_refused("top --output a.prom", 2, "with --prometheus");
  expect_refused("top --prometheus --json", 2, "expected one or the other");
  expect_refused("top --prometheus --interval 2", 2, "expected one or the other");
}

// A full disk: the existing file is unchanged, and no partial file is left.
TEST_F(Textfile, OfAFullDiskIsUnchanged) {
  const std::string file = folder() + "/gpumem.prom";
  std::ofstream{file} << "before\n";
  const std::string command = "(trap '' XFSZ; ulimit -f 0; env -i PATH=\"$PATH\" GPUMEM_SHARED_FOLDER='" +
                              path("shared") + "' " + machine_ + " '" + path("bin/gpumem") +
                              "' top --prometheus --output '" + file + "') 2>&1 | cat >'" + path("out") + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_THAT(content_of(path("out")), HasSubstr("--output " + file + ": cannot be written: File too large"));
  EXPECT_EQ(content_of(file), "before\n");
  EXPECT_EQ(std::distance(fs::directory_iterator{folder()}, fs::directory_iterator{}), 1);
}

}  // namespace
}  // namespace gpumem::cli
