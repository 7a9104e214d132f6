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

TEST_F(Run, SetsTheOptionsVariablesAndPreloadsTheLibrary) {
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
  expect_refused(
      "", 2, "expected run, devices, top, exporter, lease, plan, advise, why, dump, convert, simulate, predict or fit");
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

TEST_F(Run, WithoutDevicesVisibleCardsStayUnchanged) {
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
