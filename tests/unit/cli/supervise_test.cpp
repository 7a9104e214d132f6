// `gpumem run` while its command runs: signals, the status of a command that a signal ends, waiting for a card, and the
// summary after out of memory.
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "program.hpp"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Supervise : public Program {
 protected:
  /// The output of a shell script that gets the program and the folder.
  std::string script(const std::string& text, const std::string& environment = "") {
    write("script", text);
    const std::string command = "env -i PATH=\"$PATH\" GPUMEM_SHARED_FOLDER='" + path("shared") + "' " + environment +
                                " sh '" + path("script") + "' '" + path("bin/gpumem") + "' '" + folder_ + "' >'" +
                                path("out") + "' 2>'" + path("err") + "'";
    static_cast<void>(std::system(command.c_str()));
    return content_of(path("out"));
  }
};

TEST_F(Supervise, ASignalThatEndsTheCommandEndsIt) {
  EXPECT_EQ(script("\"$1\" run -- sh -c 'kill -TERM $$'\necho $?\n"), "143\n");
  EXPECT_EQ(script("\"$1\" run -- sh -c 'kill -SEGV $$'\necho $?\n"), "139\n");
}

TEST_F(Supervise, SignalsArePassedOn) {
  const std::string told = script(
      "\"$1\" run -- sh -c 'trap \"echo got it; exit 7\" TERM; echo >\"$0/up\"; while :; do sleep 0.05; done' \"$2\" "
      "&\n"
      "while [ ! -e \"$2/up\" ]; do sleep 0.02; done\n"
      "kill -TERM $!\nwait $!\necho $?\n");
  EXPECT_EQ(told, "got it\n7\n");
}

TEST_F(Supervise, TheCommandDoesNotOutliveIt) {
  const std::string told = script(
      "\"$1\" run -- sh -c 'echo $$ >\"$0/pid\"; exec sleep 60' \"$2\" &\n"
      "while [ ! -s \"$2/pid\" ]; do sleep 0.02; done\n"
      "kill -KILL $!\nwait $!\n"
      "alive() { grep -qs '^State:[[:space:]]*[^ZX[:space:]]' /proc/$(cat \"$1/pid\")/status; }\n"
      "for try in $(seq 100); do alive \"$2\" || break; sleep 0.02; done\n"
      "alive \"$2\" && echo alive || echo gone\n");
  EXPECT_EQ(told, "gone\n");
}

TEST_F(Supervise, ReturnsTheStatusUnderAParentThatIgnoresItsChildren) {
  // Python restores no signal across exec, so the program begins with SIGCHLD ignored, as under some daemons.
  const std::string ignoring =
      "python3 -c 'import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], "
      "sys.argv[1:])' \"$1\" ";
  EXPECT_EQ(script(ignoring + "run -- sh -c 'exit 5'\necho $?\n"), "5\n");
  EXPECT_EQ(script(ignoring + "run -- sh -c 'kill -TERM $$'\necho $?\n"), "143\n");
  const std::string ignored = script(ignoring + "run -- sed -n 's/^SigIgn:.//p' /proc/self/status\n");
  constexpr unsigned long long sigchld = 1ULL << (SIGCHLD - 1);
  EXPECT_NE(std::strtoull(ignored.c_str(), nullptr, 16) & sigchld, 0U) << "the command ignores it, too: " << ignored;
}

TEST_F(Supervise, AStderrThatIsClosedOrFullChangesNoStatus) {
  EXPECT_EQ(script("\"$1\" run --limit 0 -- true 2>&-\necho $?\n\"$1\" foo 2>/dev/full\necho $?\n"
                   "\"$1\" run -- /no/such 2>&-\necho $?\n\"$1\" run -- sh -c 'exit 5' >&- 2>&-\necho $?\n"),
            "2\n2\n127\n5\n");
  EXPECT_EQ(script("\"$1\" --help >/dev/full\necho $?\n"), "1\n") << "lost output is no success";
}

TEST_F(Supervise, TheCommandGetsNoDescriptorThatWasClosed) {
  EXPECT_EQ(script("\"$1\" run -- sh -c '[ -e /proc/$$/fd/2 ] && echo open || echo closed' 2>&-\n"), "closed\n");
}

TEST_F(Supervise, ARelativeSharedFolderIsOneForAllProcesses) {
  EXPECT_EQ(script("cd \"$2\"\nGPUMEM_SHARED_FOLDER=some/where\nexport GPUMEM_SHARED_FOLDER\n"
                   "\"$1\" run -- sh -c 'cd /; echo $GPUMEM_SHARED_FOLDER'\n"),
            folder_ + "/some/where\n");
}

TEST_F(Supervise, SummarisesOutOfMemoryAtTheEnd) {
  const std::string write_line =
      "run -- sh -c 'printf \"12 77 train: out of memory on pool 0: 3.00 GiB asked   \\n\" "
      ">>\"$GPUMEM_OOM_FILE\"; exit 5'";
  const outcome got = run(write_line);
  EXPECT_EQ(got.exit_status, 5);
  EXPECT_THAT(got.err,
              HasSubstr("gpumem: process 77 had 12 requests refused; the first: train: out of memory on pool 0: "
                        "3.00 GiB asked\n"));
  EXPECT_THAT(got.err, HasSubstr("gpumem advise run.csv.gz"));
  EXPECT_EQ(run("run -- sh -c 'ls \"$GPUMEM_SHARED_FOLDER\"'").err, "") << "nothing ran out";
  EXPECT_EQ(run("run -- sh -c 'ls \"$GPUMEM_SHARED_FOLDER\"'").out, "")
      << "and the file is there only when it is needed";
  write("mine", "3 1 of-an-earlier-run: x\n");
  const outcome named = run(write_line, "GPUMEM_OOM_FILE='" + path("mine") + "'");
  EXPECT_THAT(named.err, Not(HasSubstr("of-an-earlier-run")));
  EXPECT_THAT(content_of(path("mine")), HasSubstr("12 77 train")) << "the user's own file stays";
}

TEST_F(Supervise, WaitsForACardWithRoom) {
  const std::string full = four_cards + " FAKENVML_USED=0=20480,1=20480,2=16384,3=20480 FAKENVML_PIDS=0=1,1=1,2=1,3=1";
  const outcome fits = run("run --wait 5s --limit 6GiB -- sh -c 'echo $CUDA_VISIBLE_DEVICES'", full);
  EXPECT_EQ(fits.out, uuid(2) + "\n") << fits.err;
  EXPECT_EQ(fits.err, "") << "there was no need to wait";
  const outcome never = run("run --wait 0.3 --limit 50% -- true", full);
  EXPECT_EQ(never.exit_status, 1);
  EXPECT_THAT(never.err,
              HasSubstr("gpumem: waiting for a card with 50% free: " + uuid(0) + " has 4.00 GiB free and 1 processes"));
  EXPECT_THAT(never.err, HasSubstr("gpumem: --wait: after 0 s there is not a card with 50% free: "));
  EXPECT_EQ(run("run --wait 0s -- true", full).exit_status, 1) << "nobody may use it";
  EXPECT_EQ(run("run --wait -- sh -c 'echo $CUDA_VISIBLE_DEVICES'", four_cards + " FAKENVML_PIDS=0=1,1=1,3=1").out,
            uuid(2) + "\n");
  EXPECT_EQ(run("run --wait 0 --devices 2 --limit 6GiB -- true", full).exit_status, 0) << "a card by name";
  EXPECT_EQ(run("run --wait 0 --devices 1 --limit 6GiB -- true", full).exit_status, 1);
  expect_refused("run --wait soon -- true", 2, "--wait soon: expected a time such as 30s, 10m or 2h");
}

// In a container NVML lists no process of others.
TEST_F(Supervise, ACardWithMemoryInUseIsUsed) {
  const std::string full = four_cards + " FAKENVML_USED=0=23000,1=23000,2=23000,3=1025";
  EXPECT_EQ(run("run --wait 0 -- echo started", full).exit_status, 1);
  EXPECT_EQ(run("run --wait 0 -- echo started", full).out, "");
  EXPECT_EQ(run("run --wait 0 -- echo started", four_cards + " FAKENVML_USED=0=1024").out, "started\n");
  const std::string two = "GPUMEM_IDLE_BYTES=2GiB ";
  EXPECT_EQ(run("run --wait 0 -- sh -c 'echo $CUDA_VISIBLE_DEVICES'", two + full).out, uuid(3) + "\n");
  EXPECT_EQ(run("run --devices auto -- sh -c 'echo $CUDA_VISIBLE_DEVICES'",
                four_cards + " FAKENVML_USED=0=9000,1=23000,3=2000")
                .out,
            uuid(2) + "\n");
}

TEST_F(Supervise, ADesktopsScreenLeavesACardIdle) {
  const std::string desktop = four_cards + " FAKENVML_CARDS=1 FAKENVML_MIB=4096 FAKENVML_USED=0=700";
  EXPECT_EQ(run("run --wait 0 -- true", desktop).exit_status, 1) << "more than 5 % of 4 GiB";
  EXPECT_EQ(run("run --wait 0 -- true", desktop + " FAKENVML_GRAPHICS=0=300").exit_status, 1);
  EXPECT_EQ(run("run --wait 0 -- true", desktop + " FAKENVML_GRAPHICS=0=300 FAKENVML_RESERVED=0=300").exit_status, 0);
  const std::string large = four_cards + " FAKENVML_CARDS=1 FAKENVML_USED=0=1300";
  EXPECT_EQ(run("run --wait 0 -- true", large).exit_status, 1);
  EXPECT_EQ(run("run --wait 0 -- true", large + " FAKENVML_GRAPHICS=0=300").exit_status, 0);
}

}  // namespace
}  // namespace gpumem::cli
