// `gpumem dump`: this test is itself the served process that is dumped.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "history_dump.hpp"
#include "pooled_allocator.hpp"
#include "program.hpp"
#include "shared_folder.hpp"
#include "status_socket.hpp"

namespace gpumem::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Dump : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    ASSERT_TRUE(shared_folder(path("shared")).ok());
  }
  void serve(const char* history, const char* pools = "") {
    settings with;
    ASSERT_TRUE(with.set("history", history).ok());
    ASSERT_TRUE(*pools == '\0' || with.set("pools", pools).ok());
    device* devices[]{&gpu_};
    auto made = pooled_allocator::open(devices, with);
    ASSERT_TRUE(made.ok()) << made.why().message();
    served_ = *std::move(made);
    auto socket = status_socket::open(
        path("shared"), [] { return std::string{"{}"}; }, nullptr,
        [this](std::string_view what, int descriptor) {
          pooled_allocator* const all[]{served_.get()};
          return write_dump(all, what, descriptor);
        });
    ASSERT_TRUE(socket.ok()) << socket.why().message();
    socket_ = *std::move(socket);
  }
  /// Allocates three blocks, keeps one, and makes a request that is refused.
  void use_memory() {
    kept_ = served_->allocate(3 * mib + 5);
    for (const std::size_t bytes : {std::size_t{1000}, 200 * mib}) served_->deallocate(served_->allocate(bytes));
    EXPECT_FALSE(served_->try_allocate({.bytes = std::size_t{1} << 50}).ok());
  }
  void TearDown() override {
    socket_.reset();
    if (kept_ != nullptr) served_->deallocate(kept_);
    Program::TearDown();
  }
  outcome dump(const std::string& arguments) {
    return run("dump " + std::to_string(::getpid()) + " " + arguments, "GPUMEM_SHARED_FOLDER='" + path("shared") + "'");
  }
  void expect_no_dump(const std::string& arguments, const std::string& reason) {
    expect_refused("dump " + arguments, 2, reason, "GPUMEM_SHARED_FOLDER='" + path("shared") + "'");
  }

  sim_device gpu_;
  std::unique_ptr<pooled_allocator> served_;
  std::unique_ptr<status_socket> socket_;
  void* kept_ = nullptr;
};

TEST_F(Dump, WritesATrace) {
  serve("1000");
  use_memory();
  const outcome got = dump("--output '" + path("run.csv") + "'");
  ASSERT_EQ(got.exit_status, 0) << got.err;
  EXPECT_EQ(got.out, path("run.csv") + "\n");
  const std::string text = content_of(path("run.csv"));
  EXPECT_THAT(text, StartsWith("Thread,Time,Action,Pointer,Size,Stream\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7);
  EXPECT_THAT(text, HasSubstr(",allocate failure,growth@"));
  EXPECT_EQ(dump("-o '" + path("run.csv.gz") + "'").exit_status, 0);
  EXPECT_EQ(run("convert '" + path("run.csv.gz") + "' -o '" + path("again.csv") + "'").exit_status, 0);
  EXPECT_THAT(content_of(path("again.csv")), HasSubstr(",allocate,"));
}

TEST_F(Dump, WritesASnapshotThatReplaysAsTheTraceDoes) {
  serve("4");  // the kept block is from before the events
  use_memory();
  ASSERT_EQ(dump("--output '" + path("run.csv") + "'").exit_status, 0);
  const outcome got = dump("--output '" + path("run.pickle") + "'");
  ASSERT_EQ(got.exit_status, 0) << got.err;
  for (const char* name : {"run.csv", "run.pickle"}) {
    const outcome converted = run("convert '" + path(name) + "' -o '" + path(std::string{name} + ".out.csv") + "'");
    ASSERT_EQ(converted.exit_status, 0) << name << converted.err;
  }
  const auto without_times = [this](const std::string& name) {
    std::istringstream in{content_of(path(name))};
    std::string out;
    for (std::string line; std::getline(in, line);) {
      const std::size_t thread = line.find(',');
      line.erase(0, line.find(',', thread + 1));
      // A snapshot does not say which policy refused.
      if (const std::size_t by = line.find("growth@"); by != std::string::npos) {
        line.replace(by, line.find(',', by) - by, "(nil)");
      }
      out += line + "\n";
    }
    return out;
  };
  EXPECT_EQ(without_times("run.pickle.out.csv"), without_times("run.csv.out.csv"));
  EXPECT_EQ(dump("--format snapshot --output '" + path("other") + "'").exit_status, 0);
  EXPECT_THAT(content_of(path("other")), StartsWith("\x80\x02}("));
}

TEST_F(Dump, IsReadByWhyOfALivingProcess) {
  serve("1000");
  use_memory();
  const outcome got =
      run("why " + std::to_string(::getpid()) + " --json -", "GPUMEM_SHARED_FOLDER='" + path("shared") + "'");
  const nlohmann::json all = nlohmann::json::parse(got.out);
  EXPECT_EQ(all["refused"], 1);
  EXPECT_EQ(all["at_refusal"]["live_bytes"], 3 * mib + 512);
}

TEST_F(Dump, WritesAFileForEachLogicalDevice) {
  serve("1000", "1GiB,1GiB");
  served_->deallocate(served_->allocate(1000, {}, 1));
  ASSERT_EQ(dump("--output '" + path("run.csv") + "'").exit_status, 0);
  const std::string second = content_of(path("run.1.csv"));
  EXPECT_EQ(std::count(second.begin(), second.end(), '\n'), 3);
  EXPECT_THAT(content_of(path("run.csv")), EndsWith("Stream\n")) << "nothing was allocated there";
}

TEST_F(Dump, PrintsTheEventsOfEveryProgram) {
  serve("0");
  use_memory();
  const outcome got = dump("--format events");
  ASSERT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(got.out, StartsWith("pool 0 (growth): "));
  EXPECT_THAT(got.out, HasSubstr(" s segment_taken "));
  EXPECT_THAT(got.out, HasSubstr(" s request_refused 1125899906842624 reserved "));
}

TEST_F(Dump, ExplainsFailuresInOneLine) {
  expect_no_dump(std::to_string(::getpid()), "is not served by gpumem, has allocated nothing yet, or runs with ");
  expect_no_dump("999999999", "process 999999999 does not exist; expected the PID of a program that gpumem serves");
  expect_no_dump("nobody", "pid");
  expect_no_dump("", "pid is required");
  expect_no_dump(std::to_string(::getpid()) + " --format pictures", "--format");
  serve("0");
  expect_no_dump(std::to_string(::getpid()), "keeps no history; start it with GPUMEM_HISTORY=100000");
  EXPECT_FALSE(std::filesystem::exists(path("gpumem-" + std::to_string(::getpid()) + ".csv")));
  served_->deallocate(served_->allocate(1000));
  const outcome got = dump("--format events --output '" + path("none/run.csv") + "'");
  EXPECT_EQ(got.exit_status, 1);
  EXPECT_THAT(got.err, HasSubstr("cannot be written: No such file or directory; expected a file in a folder"));
}

TEST_F(Dump, OfAnEarlierGpumemIsRefused) {
  auto earlier = status_socket::open(
      path("shared"), [] { return std::string{"{\"schema\":1}"}; }, [] {});
  ASSERT_TRUE(earlier.ok());
  expect_no_dump(std::to_string(::getpid()), "is served by an earlier gpumem; start it with this version to dump it");
}

TEST_F(Dump, OfAnotherUsersProcessIsRefused) {
  serve("1000");
  use_memory();
  const std::string environment = "GPUMEM_SHARED_FOLDER='" + path("shared") + "' " + as_another_user();
  const std::string pid = ::geteuid() == 0 ? std::to_string(::getpid()) : "1";
  expect_refused("dump " + pid, 2, "process " + pid + " belongs to another user; run this as that user, or as root",
                 environment);
}

}  // namespace
}  // namespace gpumem::cli
