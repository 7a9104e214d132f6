// `gpumem run`: the environment that the command gets, its status, the cards it sees, and everything that is refused.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "program.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Run : public Program {
 protected:
  /// The value of a variable in a command started with these options; `-` if it is not set.
  std::string variable(const std::string& name, const std::string& options, const std::string& environment = "") {
    const outcome got = run("run " + options + " -- sh -c 'echo \"${" + name + "--}\"'", environment);
    EXPECT_EQ(got.exit_status, 0) << got.err;
    return got.out.substr(0, got.out.find('\n'));
  }
  std::string visible(const std::string& options, const std::string& environment = "") {
    return variable("CUDA_VISIBLE_DEVICES", options, four_cards + " " + environment);
  }
};

TEST_F(Run, PassesOnTheCommandsStatusAndWords) {
  EXPECT_EQ(run("run -- true").exit_status, 0);
  EXPECT_EQ(run("run -- false").exit_status, 1);
  EXPECT_EQ(run("run -- sh -c 'exit 42'").exit_status, 42);
  EXPECT_EQ(run("run -- echo --limit '' -- 'a b'").out, "--limit  -- a b\n");
  EXPECT_EQ(run("run --limit 4GiB -- echo x").err, "");
}

TEST_F(Run, SetsWhatTheOptionsSayAndPreloadsTheLibraryBesideIt) {
  const std::string library = fs::canonical(path("lib/libgpumem_preload.so")).string();
  EXPECT_EQ(variable("GPUMEM_LIMIT", "--limit 30%"), "30%");
  EXPECT_EQ(variable("GPUMEM_LIMIT", "", "GPUMEM_LIMIT=2GiB"), "2GiB");
  EXPECT_EQ(variable("GPUMEM_LIMIT", "--limit 3GiB", "GPUMEM_LIMIT=2GiB"), "3GiB");
  EXPECT_EQ(variable("GPUMEM_POLICY", "--policy caching"), "caching");
  EXPECT_EQ(variable("GPUMEM_POOLS", "--pools train:8GiB,eval:30%"), "train:8GiB,eval:30%");
  EXPECT_EQ(variable("GPUMEM_TRACE", "--trace run.csv.gz"), "run.csv.gz");
  EXPECT_EQ(variable("GPUMEM_GROUP", "--group lab --group-limit 4GiB"), "lab");
  EXPECT_EQ(variable("GPUMEM_GROUP_LIMIT", "--group lab --group-limit 4GiB"), "4GiB");
  EXPECT_EQ(variable("LD_PRELOAD", ""), library);
  EXPECT_EQ(variable("LD_PRELOAD", "", "LD_PRELOAD=libm.so.6"), library + ":libm.so.6");
  EXPECT_THAT(run("run -- cat /proc/self/maps").out, HasSubstr(library)) << "and it is loaded";
  fs::rename(path("lib/libgpumem_preload.so"), path("bin/libgpumem_preload.so"));
  EXPECT_EQ(variable("LD_PRELOAD", ""), fs::canonical(path("bin/libgpumem_preload.so")).string());
}

TEST_F(Run, WithoutTheLibraryToPreloadItSaysSo) {
  fs::remove(path("lib/libgpumem_preload.so"));
  // This folder lacks ../src, the library's place in a build tree.
  expect_refused("run -- true", 1, "no libgpumem_preload.so in " + fs::canonical(path("bin")).string());
}

TEST_F(Run, ACommandThatCannotBeRunHasTheShellsStatus) {
  expect_refused("run -- no-such-command-of-ours", 127, "no-such-command-of-ours: no such command");
  expect_refused("run -- /no/such/file", 127, "/no/such/file: no such command");
  expect_refused("run -- ''", 127, "no such command");
  expect_refused("run -- /", 126, "is a folder");
  if (::geteuid() != 0) {
    write("plain", "x");
    expect_refused("run -- '" + path("plain") + "'", 126, "Permission denied");
  }
  write("script", "#!/no/such/interpreter\n", 0755);
  expect_refused("run -- '" + path("script") + "'", 127, "cannot be run");
}

TEST_F(Run, RefusesBadWordsInOneLine) {
  expect_refused("", 2, "expected run, devices, top, lease, plan, advise, convert, simulate or predict");
  expect_refused("fly", 2, "fly");
  expect_refused("run", 2, "expected gpumem run [OPTIONS] -- COMMAND...");
  expect_refused("run --", 2, "no command");
  expect_refused("run true", 2, "true");
  expect_refused("run --nonsense -- true", 2, "--nonsense");
  expect_refused("run --limit 0 -- true", 2, "--limit=0: zero; expected");
  expect_refused("run --limit 3parsecs -- true", 2, "--limit=3parsecs: unknown unit parsecs; expected");
  expect_refused("run --pools 8GiB,,1 -- true", 2, "--pools=8GiB,,1: ");
  expect_refused("run --policy nonsense -- true", 2, "nonsense");
  expect_refused("run --pools 1GiB:x,a:1GiB:nonsense -- true", 2, "--pools=");
  expect_refused("run --pools b:1GiB,a:1GiB:nonsense -- true", 2, "--pools=b:1GiB,a:1GiB:nonsense: ");
  expect_refused("run --policy hard_cap -- true", 2, "needs --limit");
  expect_refused("run --policy multi_pool -- true", 2, "needs --pools");
  expect_refused("run --devices -1 -- true", 2, "--devices=-1: expected");
  expect_refused("run --devices auto:0 -- true", 2, "--devices=auto:0: expected auto:N");
  expect_refused("run --group a/b -- true", 2, "--group=a/b: expected a name");
  expect_refused("run --group x --group-limit 30%free -- true", 2, "--group-limit=30%free: expected");
  expect_refused("run --group-limit 1GiB -- true", 2, "needs --group");
  expect_refused("run -- true", 2, "GPUMEM_LIMIT=x: not a number; expected", "GPUMEM_LIMIT=x");
  expect_refused("run -- true", 2, "GPUMEM_PUBLISH=x: expected 0 or 1", "GPUMEM_STRICT=1 GPUMEM_PUBLISH=x");
  EXPECT_EQ(run("run -- true", "GPUMEM_PUBLISH=x").exit_status, 0);
  expect_refused("run -- true", 2, "GPUMEM_DEVICES=-1: expected", four_cards + " GPUMEM_DEVICES=-1");
  EXPECT_EQ(run("run --devices 1 -- true", four_cards + " GPUMEM_DEVICES=-1").exit_status, 0) << "overruled";
  expect_refused("devices -- true", 2, "expected only with run");
  expect_refused("top --interval 0", 2, "--interval 0: expected seconds");
  expect_refused("top --interval soon", 2, "--interval soon: expected seconds");
}

// The library's own default is the process; values of the environment are passed on unchanged.
TEST_F(Run, TheScopeOfALimitIsTheLibrarysDefaultUnlessItIsNamed) {
  EXPECT_EQ(variable("GPUMEM_LIMIT_SCOPE", "--limit 30%"), "-");
  EXPECT_EQ(variable("GPUMEM_LIMIT_SCOPE", "--limit 30%", "GPUMEM_LIMIT_SCOPE=pool"), "pool");
  EXPECT_EQ(variable("GPUMEM_LIMIT_SCOPE", "--limit 8GiB --pools 2GiB,2GiB"), "-");
  expect_refused("run --pools 2GiB,2GiB -- true", 2, "GPUMEM_LIMIT_SCOPE=process with pools",
                 "GPUMEM_LIMIT_SCOPE=process");
}

TEST_F(Run, ALedgerThatCannotBeTrustedIsRefusedBeforeTheCommandBegins) {
  const std::string group = "run --group lab --group-limit 1GiB -- true";
  fs::create_directory(path("shared"));
  ASSERT_EQ(::chmod(path("shared").c_str(), 0700), 0);
  EXPECT_EQ(run(group).exit_status, 0) << "there is none yet";
  write("shared/group-other-GPU-1", "no ledger either, and not this group's", 0600);
  EXPECT_EQ(run(group).exit_status, 0);
  write("shared/group-lab-GPU-1", "no ledger", 0600);
  expect_refused(group, 2, "group-lab-GPU-1: is none, or of another version; expected a ledger of group lab");
  write("shared/group-lab-GPU-1", std::string(5000, 'x'), 0600);
  expect_refused(group, 2, "expected a ledger of group lab");
  ASSERT_EQ(::chmod(path("shared/group-lab-GPU-1").c_str(), 0644), 0);
  expect_refused(group, 2, "has mode 0644");
  fs::remove(path("shared/group-lab-GPU-1"));
  fs::create_symlink("/dev/null", path("shared/group-lab-GPU-1"));
  expect_refused(group, 2, "is a symlink");
  fs::remove(path("shared/group-lab-GPU-1"));
  if (::geteuid() == 0) {
    write("shared/group-lab-GPU-1", "", 0600);
    ASSERT_EQ(::chown(path("shared/group-lab-GPU-1").c_str(), 65534, 65534), 0);
    expect_refused(group, 2, "belongs to user 65534");
    fs::remove(path("shared/group-lab-GPU-1"));
  }
  ASSERT_EQ(::chmod(path("shared").c_str(), 0755), 0);
  expect_refused(group, 2, "has mode 0755; expected 0700");
}

TEST_F(Run, HelpAndVersionAreNoErrors) {
  EXPECT_THAT(run("--help").out, HasSubstr("devices"));
  EXPECT_THAT(run("run --help").out, HasSubstr("--devices"));
  EXPECT_THAT(run("--version").out, ::testing::StartsWith("gpumem "));
}

TEST_F(Run, WithoutDevicesWhatIsVisibleStaysAsItIs) {
  EXPECT_EQ(visible(""), "-");
  EXPECT_EQ(visible("", "CUDA_VISIBLE_DEVICES=3,1"), "3,1");
  EXPECT_EQ(visible("--devices all", "CUDA_VISIBLE_DEVICES=3,1"), "3,1");
}

TEST_F(Run, HandsCardsOnByUuidInCudasOrder) {
  EXPECT_EQ(visible("--devices 0"), uuid(0));
  EXPECT_EQ(visible("--devices 2,0"), uuid(2) + "," + uuid(0));
  EXPECT_EQ(visible("--devices 0", "CUDA_DEVICE_ORDER=PCI_BUS_ID"), uuid(3)) << "NVML's card 3 has the lowest address";
  EXPECT_EQ(visible("--devices 0", "CUDA_VISIBLE_DEVICES=2,1"), uuid(2)) << "among those that are visible";
  EXPECT_EQ(visible("--devices " + uuid(1)), uuid(1));
  EXPECT_EQ(visible("--devices GPU-1"), uuid(1));
  EXPECT_EQ(visible("--devices ''"), "");
  EXPECT_EQ(visible("--devices none"), "");
  EXPECT_EQ(visible("", "GPUMEM_DEVICES=1"), uuid(1)) << "the variable is obeyed as the option";
  EXPECT_EQ(variable("GPUMEM_DEVICES", "--devices 1", four_cards), "-") << "and not a second time";
  EXPECT_EQ(visible("--devices 0", "FAKENVML_MIG=0=2"), "MIG-fake-0");
}

TEST_F(Run, AutoTakesTheIdleCard) {
  const std::string busy = "FAKENVML_PIDS=0=1,3=1 FAKENVML_BUSY=1=80 ";
  EXPECT_EQ(visible("--devices auto", busy), uuid(2));
  EXPECT_EQ(visible("--devices auto", busy + "CUDA_VISIBLE_DEVICES=0,1"), uuid(0)) << "or the better of the others";
  EXPECT_EQ(visible("--devices auto", "FAKENVML_USED=0=100,1=50,2=70,3=60"), uuid(1));
  EXPECT_EQ(visible("--devices auto:2", "FAKENVML_USED=0=100,1=50,2=70,3=60"), uuid(1) + "," + uuid(3));
}

TEST_F(Run, ACardThatDoesNotExistIsAnErrorOrReplacedWithAMessage) {
  expect_refused("run --devices 7 -- true", 2, "GPUMEM_DEVICES=7: card 7 does not exist; expected 0 to 3", four_cards);
  expect_refused("run --devices GPU-x -- true", 2, "no visible card is GPU-x", four_cards);
  expect_refused("run --devices auto:5 -- true", 2, "4 visible, 5 asked", four_cards);
  expect_refused("run --devices auto -- true", 2, "0 visible, 1 asked", four_cards + " CUDA_VISIBLE_DEVICES=");
  expect_refused("run --devices auto -- true", 1, "GPUMEM_NVML=/no/nvml: no NVML",
                 "GPUMEM_NVML=/no/nvml GPUMEM_CUDA_DRIVER=/no/driver");
  const outcome soft =
      run("run --devices 7 -- sh -c 'echo $CUDA_VISIBLE_DEVICES'", four_cards + " GPUMEM_SOFT_PLACEMENT=1");
  EXPECT_EQ(soft.exit_status, 0);
  EXPECT_EQ(soft.out, uuid(0) + "\n");
  EXPECT_THAT(soft.err, HasSubstr("card 7 does not exist; expected 0 to 3: " + uuid(0) + " is used instead"));
  const outcome none = run("run --devices 0 -- sh -c 'echo \"<$CUDA_VISIBLE_DEVICES>\"'",
                           "GPUMEM_NVML=/no/nvml GPUMEM_CUDA_DRIVER=/no/driver GPUMEM_SOFT_PLACEMENT=1");
  EXPECT_EQ(none.out, "<>\n");
  EXPECT_THAT(none.err, HasSubstr("nothing instead"));
}

TEST_F(Run, VerboseSaysWhyEachCardIsThereOrNot) {
  const outcome got = run("run --devices auto -- true",
                          four_cards + " GPUMEM_VERBOSE=1 CUDA_VISIBLE_DEVICES=1,2,9,3 FAKENVML_PIDS=1=1");
  EXPECT_THAT(got.err, HasSubstr("device 0 is " + uuid(2) + " (Fake 2): auto: 0 processes"));
  EXPECT_THAT(got.err, HasSubstr("not visible: " + uuid(3) + " (Fake 3): the list ends before its entry '9'"));
  EXPECT_THAT(got.err, HasSubstr("CUDA_VISIBLE_DEVICES=" + uuid(2)));
}

TEST_F(Run, SetUidProgramsRunAndItIsStatedThatTheyAreNotServed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs to make a file of another user's";
  const std::string program = path("setuid");
  fs::copy_file("/bin/true", program);
  ASSERT_EQ(::chown(program.c_str(), 65534, 65534), 0);
  ASSERT_EQ(::chmod(program.c_str(), 04755), 0);
  const outcome got = run("run -- '" + program + "'");
  EXPECT_EQ(got.exit_status, 0);
  EXPECT_THAT(got.err, HasSubstr("is set-uid: nothing can be preloaded into it"));
}

TEST_F(Run, TheLeaseLastsAsLongAsTheCommand) {
  // While the first waits for the end of its input, the second must take another card; afterwards card 0 is free again.
  const outcome got = run("run --devices auto -- sh -c 'echo $CUDA_VISIBLE_DEVICES; \"" + path("bin/gpumem") +
                              "\" run --devices auto -- sh -c \"echo \\$CUDA_VISIBLE_DEVICES\"' ",
                          four_cards);
  // The inner program sees the one card that the outer one left visible, and shares it with its parent.
  EXPECT_EQ(got.out, uuid(0) + "\n" + uuid(0) + "\n") << got.err;
  EXPECT_EQ(visible("--devices auto"), uuid(0));
}

// A hundred programs that start at once and stay until all have started.
TEST_F(Run, AHundredStartersShareNoCardWhileAnotherIsIdle) {
  write("starters",
        "mkfifo \"$2/gate\"\n"
        "exec 9<>\"$2/gate\"\n"
        "for i in $(seq 100); do\n"
        "  GPUMEM_VERBOSE=1 \"$1\" run --devices auto -- sh -c \"echo \\$CUDA_VISIBLE_DEVICES >$2/card.$i; read line "
        "<&9\" "
        "2>\"$2/err.$i\" &\n"
        "done\n"
        "for try in $(seq 2400); do\n"
        "  [ $(cat \"$2\"/card.* 2>/dev/null | wc -l) = 100 ] && break\n"
        "  sleep 0.05\n"
        "done\n"
        "for i in $(seq 100); do echo >&9; done\n"
        "wait\n");
  const std::string command = "env -i PATH=\"$PATH\" " + four_cards + " sh '" + path("starters") + "' '" +
                              path("bin/gpumem") + "' '" + folder_ + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::map<std::string, int> starters;
  std::map<std::string, int> alone;
  for (int i = 1; i <= 100; ++i) {
    const std::string number = std::to_string(i);
    const std::string card = content_of(path("card." + number));
    ++starters[card.substr(0, card.find('\n'))];
    if (content_of(path("err." + number)).find(", 0 other programs") != std::string::npos) {
      ++alone[card.substr(0, card.find('\n'))];
    }
  }
  std::map<std::string, int> evenly;
  std::map<std::string, int> one_each;
  for (int i = 0; i < 4; ++i) {
    evenly[uuid(i)] = 25;
    one_each[uuid(i)] = 1;
  }
  EXPECT_EQ(starters, evenly);
  EXPECT_EQ(alone, one_each) << "the first on each card had it for itself";
}

/// Three programs at once that each take a card of 24 GiB if it has room and keep it until all have decided; `got N`
/// for those that got it.
class Waiting : public Run {
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

TEST_F(Waiting, WhatAClaimsProgramUsesCountsOnce) {
  // The outer program claimed 20 of 24 GiB and uses 256 MiB, so others get 4 GiB at most; its own child may use the
  // claim.
  write("inner", "\"$1\" run --wait 0.1 --limit $2 -- echo ran\n");
  const std::string inner = "sh '" + path("inner") + "' '" + path("bin/gpumem") + "' ";
  EXPECT_EQ(run("run --devices 0 --limit 20GiB -- " + inner + "20GiB", one_card()).out, "ran\n");
  write("beside",
        "\"$1\" run --devices 0 --limit 20GiB -- sleep 3 &\n"
        "for try in $(seq 200); do \"$1\" lease | grep -q ' 20.00 GiB ' && break; sleep 0.02; done\n"
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

TEST_F(Waiting, SaysOnceWhatItWaitsForAndEndsWithStatusOne) {
  const outcome got = run("run --wait 1.2s --limit 25GiB -- true", one_card());
  EXPECT_EQ(got.exit_status, 1);
  EXPECT_EQ(std::count(got.err.begin(), got.err.end(), '\n'), 2) << got.err;
  EXPECT_THAT(got.err, HasSubstr("waiting for a card with 25GiB free: "));
  expect_refused("run --wait 5y -- true", 2, "--wait 5y: expected a time such as 30s, 10m or 2h", one_card());
}

#ifdef GPUMEM_TEST_DRIVER
TEST_F(Run, WhereThereIsADriverItsOrderCounts) {
  // The double of the driver has two cards, which NVML lists in reverse order.
  const std::string zeros = "00000000-0000-0000-0000-00000000000";
  const std::string environment = "GPUMEM_NVML='" GPUMEM_TEST_NVML "' GPUMEM_CUDA_DRIVER='" GPUMEM_TEST_DRIVER
                                  "' SIMCUDA_DEVICES=2 SIMCUDA_BYTES=256MiB SIMCUDA_HOST_MEMORY=0 FAKENVML_CARDS=2 "
                                  "FAKENVML_UUIDS=" +
                                  zeros + "1," + zeros + "0 ";
  EXPECT_EQ(variable("CUDA_VISIBLE_DEVICES", "--devices 1", environment), "GPU-" + zeros + "1");
  EXPECT_EQ(variable("CUDA_VISIBLE_DEVICES", "--devices auto", environment + "FAKENVML_PIDS=1=1 FAKENVML_USED=1=20000"),
            "GPU-" + zeros + "1");
}
#endif

}  // namespace
}  // namespace gpumem::cli
