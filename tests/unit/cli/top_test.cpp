// `gpumem top`: cards and served processes. This test is itself a served process.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bits.hpp"
#include "exporter.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "program.hpp"
#include "prometheus_text.hpp"
#include "published_figures.hpp"
#include "shared_folder.hpp"
#include "status_socket.hpp"

namespace gpumem::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using json = nlohmann::json;

class Top : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    ASSERT_TRUE(shared_folder(path("shared")).ok());
    ASSERT_TRUE(with_.set("policy", "caching").ok());
    ASSERT_TRUE(with_.set("limit", "10GiB").ok());
    device* devices[]{&gpu_};
    auto made = allocator::open(devices, with_);
    ASSERT_TRUE(made.ok());
    served_ = *std::move(made);
    auto socket = status_socket::open(
        path("shared"),
        [this] {
          const allocator* const all[]{served_.get()};
          return published_figures(all, with_);
        },
        [this] { static_cast<void>(served_->trim(0)); });
    ASSERT_TRUE(socket.ok()) << socket.why().message();
    socket_ = *std::move(socket);
  }
  sim_device gpu_;
  settings with_;
  std::unique_ptr<allocator> served_;
  std::unique_ptr<status_socket> socket_;
};

TEST_F(Top, ShowsTheMemoryOfServedProcesses) {
  for (const std::uint64_t mib_live : {100U, 300U}) {
    void* const block = served_->allocate(mib_live * mib);
    const outcome got = run("top --once --json", four_cards);
    ASSERT_EQ(got.exit_status, 0) << got.err;
    EXPECT_EQ(std::count(got.out.begin(), got.out.end(), '\n'), 1);
    const json all = json::parse(got.out);
    EXPECT_EQ(all["devices"].size(), 4U);
    EXPECT_EQ(all["problem"], "");
    ASSERT_EQ(all["served"].size(), 1U);
    EXPECT_EQ(all["served"][0]["pid"], ::getpid());
    EXPECT_EQ(all["served"][0]["answered"], true);
    const json& d = all["served"][0]["devices"][0];
    EXPECT_EQ(d["policy"], "caching");
    EXPECT_EQ(d["limit_bytes"], 10 * gib);
    EXPECT_EQ(d["live_bytes"], mib_live * mib);
    EXPECT_GE(d["reserved_bytes"], mib_live * mib);
    served_->deallocate(block);
  }
}

TEST_F(Top, AsATable) {
  void* const block = served_->allocate(512 * mib);
  const outcome got = run("top --once", four_cards);
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("Fake 3"));
  EXPECT_THAT(got.out, HasSubstr(std::to_string(::getpid())));
  EXPECT_THAT(got.out, HasSubstr("caching"));
  EXPECT_THAT(got.out, HasSubstr("10.00 GiB  512.00 MiB  512.00 MiB"));
  for (std::size_t at = 0; at < got.out.size(); at = got.out.find('\n', at) + 1) {
    EXPECT_LE(got.out.find('\n', at) - at, 80U) << got.out.substr(at, got.out.find('\n', at) - at);
  }
  EXPECT_EQ(got.out.find('\x1b'), std::string::npos) << "a pipe is no terminal";
  served_->deallocate(block);
}

TEST_F(Top, WithoutNvmlTheServedProcessesAreShownAllTheSame) {
  const outcome got = run("top --once --json", "GPUMEM_NVML=/no/nvml");
  EXPECT_EQ(got.exit_status, 1);
  const json all = json::parse(got.out);
  EXPECT_THAT(all["problem"].get<std::string>(), HasSubstr("GPUMEM_NVML=/no/nvml: no NVML"));
  EXPECT_EQ(all["served"].size(), 1U);
}

TEST_F(Top, AnAnswerThatIsNoneIsNoAnswer) {
  for (const char* answer : {"", "nonsense", "{\"schema\":1}", "{\"schema\":1,\"devices\":[1,\"x\",null]}",
                             "{\"schema\":\"x\",\"devices\":[]}", "[]"}) {
    socket_.reset();
    auto liar = status_socket::open(path("shared"), [answer] { return std::string{answer}; });
    ASSERT_TRUE(liar.ok());
    const outcome got = run("top --once --json", four_cards);
    ASSERT_EQ(got.exit_status, 0) << answer << ": " << got.err;
    const json all = json::parse(got.out);
    ASSERT_EQ(all["served"].size(), 1U) << answer;
    EXPECT_EQ(all["served"][0]["answered"], false) << answer;
    EXPECT_THAT(run("top --once", four_cards).out, HasSubstr("no answer")) << answer;
  }
}

TEST_F(Top, RepeatsUntilItIsEnded) {
  const std::string command = "env -i PATH=\"$PATH\" GPUMEM_SHARED_FOLDER='" + path("shared") + "' " + four_cards +
                              " '" + path("bin/gpumem") + "' top --interval 0.1 --json | head -n 3 >'" + path("lines") +
                              "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
  const std::string lines = content_of(path("lines"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
  EXPECT_EQ(json::parse(lines.substr(0, lines.find('\n')))["served"].size(), 1U);
}

// Trims this process while it listens: idle memory of its pool goes back to the device.
TEST_F(Top, AServedProcessTrimsWhenItIsAsked) {
  served_->deallocate(served_->allocate(512 * mib));
  EXPECT_GT(served_->stats(0)->reserved_bytes, 0U);
  EXPECT_TRUE(ask_to_trim(path("shared"), ::getpid(), std::chrono::seconds{5}));
  EXPECT_EQ(served_->stats(0)->reserved_bytes, 0U);
  EXPECT_FALSE(ask_to_trim(path("shared"), 999'999'999, std::chrono::milliseconds{100}));
}

#ifdef GPUMEM_TEST_CURSES
// Keys on a pseudo terminal: down to the served process, trim, quit.
TEST_F(Top, OnATerminalItObeysKeys) {
  if (std::system("command -v script >/dev/null") != 0) GTEST_SKIP() << "needs script(1) for a terminal";
  served_->deallocate(served_->allocate(512 * mib));
  write("keys", "sleep 1; printf s; sleep 0.3; printf t; sleep 1; printf /nobody; sleep 0.5; printf '\\n'; printf q\n");
  const std::string command = "sh '" + path("keys") + "' | env -i PATH=\"$PATH\" TERM=xterm GPUMEM_SHARED_FOLDER='" +
                              path("shared") + "' " + four_cards + " timeout 20 script -qec \"stty rows 30 cols 80; '" +
                              path("bin/gpumem") + "' top --interval 0.5\" '" + path("typescript") +
                              "' >/dev/null 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << "q ends it";
  const std::string drawn = content_of(path("typescript"));
  EXPECT_THAT(drawn, HasSubstr("caching"));
  EXPECT_THAT(drawn, HasSubstr("memory")) << "what it is sorted by after one s";
  EXPECT_THAT(drawn, HasSubstr("gave 512.00 MiB back"));
  EXPECT_THAT(drawn, HasSubstr("no process passes the filter"));
  EXPECT_EQ(served_->stats(0)->reserved_bytes, 0U);
}

TEST_F(Top, OnATerminalThatTerminfoDoesNotKnowItPrintsRows) {
  if (std::system("command -v script >/dev/null") != 0) GTEST_SKIP() << "needs script(1) for a terminal";
  write("watch",
        "mkfifo \"$2.keys\"\n"
        "exec 9<>\"$2.keys\"\n"
        "script -qfec \"exec '$1' top --interval 0.1\" \"$2\" <&9 >/dev/null 2>&1 &\n"
        "while kill -0 $! 2>/dev/null; do\n"
        "  grep -q 'Fake 3' \"$2\" && { kill $!; echo rows; exit; }\n"
        "  sleep 0.05\n"
        "done\n");
  const std::string command = "env -i PATH=\"$PATH\" TERM=no-such-terminal GPUMEM_SHARED_FOLDER='" + path("shared") +
                              "' " + four_cards + " sh '" + path("watch") + "' '" + path("bin/gpumem") + "' '" +
                              path("typescript") + "' >'" + path("out") + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(content_of(path("out")), "rows\n") << content_of(path("typescript"));
}
#endif

TEST(ABuildWithoutMetrics, SaysWhatIsMissing) {
  const std::string missing = "expected gpumem built where it is installed (Debian: prometheus-cpp-dev)";
  EXPECT_EQ(prometheus_text({}).code(), errc::unsupported);
  EXPECT_THAT(prometheus_text({}).why().message(), HasSubstr(missing));
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_exporter({}), 1);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(StartsWith("gpumem: "), HasSubstr(missing)));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

#ifdef GPUMEM_TEST_NO_PROMETHEUS
TEST_F(Top, ABuildWithoutMetricsNamesTheMissingLibrary) {
  expect_refused("top --prometheus", 1, "expected gpumem built where it is installed (Debian: prometheus-cpp-dev)");
  expect_refused("exporter", 1, "expected gpumem built where it is installed (Debian: prometheus-cpp-dev)");
}
#endif

}  // namespace
}  // namespace gpumem::cli
