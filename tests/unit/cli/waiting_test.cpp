// `gpumem run --wait` and leases: no room is given twice, also between containers, programs get their turn in order,
// and leases last until the last descendant ends.
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "program.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// Three programs at once that each take a card of 24 GiB if it has room and keep it until all have decided; `got N`
/// for those that got it.
class Waiting : public Program {
 protected:
  /// `prefix` runs each program, such as in namespaces of its own.
  outcome race(const std::string& options, const std::string& prefix = "") {
    write("race",
          "for i in 1 2 3; do\n"
          "  { " +
              prefix +
              " \"$1\" run --wait 0 $3 -- sh -c \"echo x >>$2/got; until [ -e $2/stop ]; do sleep 0.02; done\" "
              "2>>\"$2/late\" || echo x >>\"$2/refused\"; } &\n"
              "done\n"
              "until [ $(cat \"$2\"/got \"$2\"/refused 2>/dev/null | wc -l) = 3 ]; do sleep 0.02; done\n"
              ">\"$2/stop\"\n"
              "wait\n"
              "echo got $(wc -l <\"$2/got\")\n");
    EXPECT_EQ(shell("race", options), 0);
    return {0, content_of(path("out")), content_of(path("late"))};
  }
  /// Runs a script with the program, the folder and one more argument.
  int shell(const std::string& script, const std::string& argument = "") const {
    const std::string command = "env -i PATH=\"$PATH\" GPUMEM_SHARED_FOLDER='" + path("shared") + "' " + one_card() +
                                " sh '" + path(script) + "' '" + path("bin/gpumem") + "' '" + folder_ + "' '" +
                                argument + "' >'" + path("out") + "' 2>'" + path("err") + "'";
    return std::system(command.c_str());
  }
  [[nodiscard]] std::string one_card() const { return four_cards + " FAKENVML_CARDS=1"; }
};

/// As a container that shares the folder: PIDs of its own, each program the same one.
constexpr const char* in_a_container = "unshare --user --map-root-user --pid --fork --mount --mount-proc";

bool has_containers() { return std::system((std::string{in_a_container} + " true >/dev/null 2>&1").c_str()) == 0; }

TEST_F(Waiting, TwoDoNotGetTheSameRoom) {
  const outcome got = race("--limit 20GiB");
  EXPECT_EQ(got.out, "got 1\n") << got.err;
  EXPECT_THAT(got.err, HasSubstr("there is not a card with 20GiB free: " + uuid(0) +
                                 " has 24.00 GiB free and 0 processes; 1 other program was given it, with 20.00 GiB"));
}

TEST_F(Waiting, TwoDoNotGetTheSameIdleCard) {
  const outcome got = race("");
  EXPECT_EQ(got.out, "got 1\n") << got.err;
  EXPECT_THAT(got.err, HasSubstr("there is not a card that nobody uses: "));
}

TEST_F(Waiting, ThereIsRoomForAsManyAsFit) { EXPECT_EQ(race("--devices 0 --limit 10GiB").out, "got 2\n"); }

TEST_F(Waiting, TheMemoryOfAClaimingProgramCountsOnce) {
  // The outer program claimed 20 of 24 GiB and uses 256 MiB, so others get 4 GiB at most; its own child may use the
  // claim.
  write("inner", "\"$1\" run --wait 0.1 --limit $2 -- echo ran\n");
  const std::string inner = "sh '" + path("inner") + "' '" + path("bin/gpumem") + "' ";
  EXPECT_EQ(run("run --devices 0 --limit 20GiB -- " + inner + "20GiB", one_card()).out, "ran\n");
  write("beside",
        "\"$1\" run --devices 0 --limit 20GiB -- tail -f /dev/null &\n"
        "until \"$1\" lease | grep -q ' 20.00 GiB '; do sleep 0.02; done\n"
        "export FAKENVML_USED=0=256 FAKENVML_PIDS=0=$!\n"
        "\"$1\" run --wait 0.1 --limit 4GiB -- echo four\n"
        "\"$1\" run --wait 0.1 --limit 4.1GiB -- echo more\n"
        "kill $!\n");
  static_cast<void>(shell("beside"));
  EXPECT_EQ(content_of(path("out")), "four\n") << content_of(path("err"));
}

TEST_F(Waiting, ContainersThatShareTheFolderDoNotGetTheSameRoom) {
  if (!has_containers()) GTEST_SKIP() << "unshare is not permitted here";
  EXPECT_EQ(race("--limit 14GiB", in_a_container).out, "got 1\n") << content_of(path("late"));
}

TEST_F(Waiting, ContainersShareAsMuchAsFits) {
  if (!has_containers()) GTEST_SKIP() << "unshare is not permitted here";
  EXPECT_EQ(race("--limit 10GiB", in_a_container).out, "got 2\n") << content_of(path("late"));
}

TEST_F(Waiting, AContainerThatSharesNothingIsToldSo) {
  const std::string own_ipc = std::string{in_a_container} + " --ipc";
  if (std::system((own_ipc + " true >/dev/null 2>&1").c_str()) != 0) GTEST_SKIP() << "unshare is not permitted here";
  write("alone", "unset GPUMEM_SHARED_FOLDER\n" + own_ipc +
                     " sh -c 'mount -t tmpfs none /dev/shm && \"$0\" $1' \"$1\" \"$3\"\n");
  for (const char* const options : {"run --devices auto -- echo ran", "run --wait 0 -- echo ran"}) {
    EXPECT_EQ(shell("alone", options), 0) << content_of(path("err"));
    EXPECT_EQ(content_of(path("out")), "ran\n");
    EXPECT_THAT(content_of(path("err")), HasSubstr("own IPC namespace and no GPUMEM_SHARED_FOLDER"));
  }
  EXPECT_EQ(shell("alone", "run -- echo ran"), 0);
  EXPECT_THAT(content_of(path("err")), ::testing::Not(HasSubstr("IPC namespace")));
}

// Small jobs follow one another in four loops. Once the large program has its place in the queue, no later job starts
// before it: at most one job of each loop came earlier.
TEST_F(Waiting, ALargeProgramGetsItsTurnBesideSmallOnes) {
  write(
      "turns",
      "job=\"sh -c 'echo job >>$2/log; sleep 0.1'\"\n"
      "for i in 1 2 3 4; do\n"
      "  { until [ -e \"$2/stop\" ]; do eval \"\\\"$1\\\" run --wait 60 --limit 7GiB -- $job\" 2>/dev/null; done; } &\n"
      "done\n"
      "until [ -e \"$2/log\" ]; do sleep 0.02; done\n"
      "\"$1\" run --wait 100 --limit 20GiB -- sh -c \"echo large >>$2/log\" 2>\"$2/large\" &\n"
      "large=$!\n"
      "until grep -q 'waiting for\\|large' \"$2/large\" \"$2/log\"; do sleep 0.02; done\n"
      "echo queued >>\"$2/log\"\n"
      "wait $large\n"
      "echo status $?\n"
      ">\"$2/stop\"\n"
      "wait\n");
  EXPECT_EQ(shell("turns"), 0);
  EXPECT_EQ(content_of(path("out")), "status 0\n") << content_of(path("large"));
  const std::string log = content_of(path("log"));
  const std::size_t queued = log.find("queued");
  const std::size_t large = log.find("large");
  ASSERT_NE(large, std::string::npos) << log;
  int between = 0;
  for (std::size_t at = queued; at < large && (at = log.find("job", at)) < large; ++at) ++between;
  EXPECT_LE(between, 4) << log;
}

TEST_F(Waiting, AHostileTableIsRefusedInOneLine) {
  fs::create_directory(path("shared"));
  ::chmod(path("shared").c_str(), 0700);
  ASSERT_EQ(::mkfifo(path("shared/claims-1-1").c_str(), 0600), 0);
  for (const char* const options : {"run --devices auto -- true", "run --wait 0 -- true", "lease"}) {
    expect_refused(options, 2, path("shared/claims-1-1") + ": is no regular file; expected a file of claims",
                   one_card());
  }
  EXPECT_EQ(run("run --devices 0 -- echo ran", one_card()).out, "ran\n") << "a card by name needs no table";
}

TEST_F(Waiting, TheLeaseLastsUntilTheLastDescendantEnds) {
  // The worker closes every descriptor, as Python's subprocess does, and outlives the command.
  write("worker",
        "for fd in 3 4 5 6 7 8 9; do eval \"exec $fd>&-\"; done\n"
        ">\"$1/runs\"; until [ -e \"$1/stop\" ]; do sleep 0.02; done\n");
  write("launcher",
        "setsid sh \"$1/worker\" \"$1\" </dev/null >/dev/null 2>&1 &\n"
        "until [ -e \"$1/runs\" ]; do sleep 0.02; done; exit 7\n");
  write("late",
        "\"$1\" run --devices auto -- sh \"$2/launcher\" \"$2\"\n"
        "echo status $?\n"
        "\"$1\" lease | grep -c ' sh$'\n"
        "\"$1\" run --wait 0 -- true 2>/dev/null || echo in use\n"
        ">\"$2/stop\"\n"
        "\"$1\" run --wait 60 -- echo free\n");
  EXPECT_EQ(shell("late"), 0);
  EXPECT_THAT(content_of(path("out")), ::testing::MatchesRegex("status 7\n[12]\nin use\nfree\n"));
}

TEST_F(Waiting, PrintsTheReasonOnceAndEndsWithStatusOne) {
  const outcome got = run("run --wait 1.2s --limit 25GiB -- true", one_card());
  EXPECT_EQ(got.exit_status, 1);
  EXPECT_EQ(std::count(got.err.begin(), got.err.end(), '\n'), 2) << got.err;
  EXPECT_THAT(got.err, HasSubstr("waiting for a card with 25GiB free: "));
  expect_refused("run --wait 5y -- true", 2, "--wait 5y: expected a time such as 30s, 10m or 2h", one_card());
}

}  // namespace
}  // namespace gpumem::cli
