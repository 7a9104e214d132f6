// `gpumem simulate` as a program: exit status, figures, refusals, and unsupported programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "temporary_folder.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

struct outcome {
  int exit_status = -1;
  std::string out;
  std::string err;
  nlohmann::json figures;
};

class Simulate : public ::testing::Test {
 protected:
  std::string content(const std::string& name) const {
    std::ifstream file{folder_ + "/" + name};
    return {std::istreambuf_iterator<char>{file}, {}};
  }

  /// `words` are for the shell, after `simulate --json`.
  outcome simulate(const std::string& words, const std::string& environment = "") const {
    const std::string command = "cd " + folder_ + " && env -i PATH=\"$PATH\" HOME=/ TMPDIR=" + folder_ + " " +
                                environment + " timeout 60 " GPUMEM_PROGRAM " simulate --json figures.json " + words +
                                " > out 2> err";
    const int status = std::system(command.c_str());
    outcome got{WEXITSTATUS(status), content("out"), content("err"),
                nlohmann::json::parse(content("figures.json"), nullptr, false)};
    return got;
  }
  outcome program(const std::string& words, const std::string& options = "") const {
    return simulate(options + " -- " GPUMEM_TEST_PROGRAM " " + words);
  }

  temporary_folder temporary_;
  std::string folder_ = temporary_.path();
};

/// The parts of PyTorch that the hooks read, with memory from the runtime.
constexpr const char* stand_in_torch = R"(import ctypes, types
__version__ = "0+standin"
_C, _entries, _peaks = types.SimpleNamespace(), [], {}
_cuda = ctypes.CDLL("libcudart.so.13")

def take(mib):
    at = ctypes.c_void_p()
    assert _cuda.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(mib << 20)) == 0
    _entries.append({"action": "alloc", "addr": at.value, "size": mib << 20, "stream": 0, "time_us": len(_entries)})
    _peaks["allocated_bytes.all.peak"] = _peaks["reserved_bytes.all.peak"] = sum(each["size"] for each in _entries)

def take_outside(mib):
    assert _cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(mib << 20)) == 0

def forget():
    del _entries[:-1]

def read_forever():
    here = ctypes.c_int()
    while True:
        _cuda.cudaMemcpy(ctypes.byref(here), ctypes.c_void_p(_entries[0]["addr"]), ctypes.c_size_t(4), 2)

memory = types.SimpleNamespace(get_allocator_backend=lambda: "native", _record_memory_history=lambda **_: None,
                               _snapshot=lambda: {"device_traces": [_entries]})
cuda = types.SimpleNamespace(is_initialized=lambda: bool(_entries), device_count=lambda: 1, _lazy_call=lambda f: f(),
                             memory_stats=lambda _: _peaks, memory=memory)
)";

TEST_F(Simulate, TellsThePeakAndPassesTheStatusOn) {
  const outcome got = program("take=100 take=200 free take=50 exit=42", "--card 24GiB --context 300MiB");
  EXPECT_EQ(got.exit_status, 42) << got.err;
  const auto& card = got.figures["cards"][0];
  EXPECT_EQ(card["bytes"], 24 * 1024 * mib);
  EXPECT_EQ(card["peak_live_bytes"], 300 * mib);
  EXPECT_EQ(card["peak_reserved_bytes"], 300 * mib);
  EXPECT_EQ(card["context_bytes"], 300 * mib);
  EXPECT_EQ(card["modules_bytes"], 0);
  EXPECT_EQ(got.figures["schema"], 1);
  EXPECT_EQ(got.figures["exit_status"], 42);
  EXPECT_TRUE(got.figures["oom"].empty());
  EXPECT_TRUE(got.figures["warnings"].empty()) << got.figures["warnings"];
  EXPECT_THAT(got.err, HasSubstr("peak live         300.00 MiB"));
  EXPECT_EQ(got.out, "");
}

TEST_F(Simulate, ReportsARefusedRequestWithItsCause) {
  const outcome got = program("until_full=100", "--card 1GiB --context 0");
  EXPECT_EQ(got.exit_status, 0);
  EXPECT_THAT(got.out, HasSubstr("10 blocks"));
  ASSERT_EQ(got.figures["oom"].size(), 1U);
  const auto& row = got.figures["oom"][0];
  EXPECT_EQ(row["requested_bytes"], 100 * mib);
  EXPECT_EQ(row["used_bytes"], 1000 * mib);
  EXPECT_EQ(row["free_bytes"], 24 * mib);
  EXPECT_EQ(row["function"], "cuMemAlloc");
  EXPECT_EQ(row["why"], "more than is free");
  EXPECT_THAT(got.err, HasSubstr("out of memory at "));
}

TEST_F(Simulate, ShowsTheProgramTheCardThatWasNamed) {
  EXPECT_EQ(program("attributes", "--card a100-40gb").out, "NVIDIA A100-SXM4-40GB|40339|8.0|108|2048|166912|40960\n");
  EXPECT_EQ(program("attributes", "--card rtx4090").out, "NVIDIA GeForce RTX 4090|24080|8.9|128|1536|101376|73728\n");
  EXPECT_EQ(program("attributes", "--card 3GiB").out, "NVIDIA H100 80GB HBM3|3072|9.0|132|2048|232448|51200\n");
}

TEST_F(Simulate, NamesACardOfTheTableInItsExample) {
  const std::string help = simulate("--help").out;
  const std::string option = "Example: gpumem simulate --card ";
  const auto at = help.find(option);
  ASSERT_NE(at, std::string::npos) << help;
  const std::string card = help.substr(at + option.size(), help.find(' ', at + option.size()) - at - option.size());
  EXPECT_THAT(simulate("--card list").out, HasSubstr("\n" + card + " ")) << card;
}

TEST_F(Simulate, CountsEachCardForItself) {
  const outcome got = program("take=100 card=1 take=30 card=0 take=10", "--cards 2 --context 0");
  EXPECT_EQ(got.exit_status, 0) << got.out;
  ASSERT_EQ(got.figures["cards"].size(), 2U);
  EXPECT_EQ(got.figures["cards"][0]["peak_live_bytes"], 110 * mib);
  EXPECT_EQ(got.figures["cards"][1]["peak_live_bytes"], 30 * mib);
}

TEST_F(Simulate, KeepsTheFiguresOfAProgramThatIsKilled) {
  const outcome got = program("take=100 kill");
  EXPECT_EQ(got.exit_status, 128 + 9);
  EXPECT_EQ(got.figures["cards"][0]["peak_live_bytes"], 100 * mib);
  EXPECT_TRUE(fs::is_empty(folder_) || !content("figures.json").empty());
  for (const auto& entry : fs::directory_iterator{folder_}) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(StartsWith("gpumem-simulate-")));
  }
}

TEST_F(Simulate, CountsTheValuesThatTheHostReadAndWarns) {
  const outcome got = program("read read read");
  EXPECT_THAT(got.out, HasSubstr("read 42"));  // small copies keep the written values
  EXPECT_EQ(got.figures["host_values_read"], 3);
  EXPECT_EQ(got.figures["untrue_values_read"], 3);  // a program without PyTorch: nobody computes
  ASSERT_EQ(got.figures["warnings"].size(), 1U);
  EXPECT_THAT(got.err, HasSubstr("sizes that depend on values"));
}

TEST_F(Simulate, CountsUndefinedUses) {
  const outcome got = program("dead_stream dead_stream exit=3");
  EXPECT_EQ(got.exit_status, 3) << got.err;
  EXPECT_EQ(got.figures["undefined_uses"], 2);
  EXPECT_THAT(got.err,
              HasSubstr("2 times what a card leaves undefined, first cuStreamQuery: a stream that is destroyed"));
  EXPECT_EQ(program("take=1").figures["undefined_uses"], 0);
}

TEST_F(Simulate, StrictlyAbortsThere) {
  const outcome got = program("dead_stream exit=3", "--strict");
  EXPECT_EQ(got.exit_status, 128 + 6);
  EXPECT_THAT(got.err,
              HasSubstr("simcuda: cuStreamQuery: a stream that is destroyed: the driver leaves this undefined"));
}

TEST_F(Simulate, EndsAProgramThatWaitsForAValue) {
  const outcome got = program("take=100 read_forever", "--settle 2s --context 0");
  EXPECT_EQ(got.exit_status, 128 + 2) << "by SIGINT: " << got.err;
  EXPECT_GE(got.figures["cards"][0]["peak_live_bytes"], 100 * mib);
  ASSERT_EQ(got.figures["warnings"].size(), 2U) << got.err;
  EXPECT_THAT(got.err, HasSubstr("ended: for 2 s the program took no more memory and read values of the card "));
  EXPECT_THAT(got.err, HasSubstr("If it waits for a value (until a loss has fallen), that never comes"));
  // A program that reads nothing is not ended, however long it takes.
  EXPECT_EQ(simulate("--settle 1s -- sh -c 'sleep 3; exit 5'").exit_status, 5);
}

TEST_F(Simulate, EndsAProgramThatLooksForAKernelsValue) {
  const outcome got = program("take=100 launch spin", "--settle 2s --context 0");
  EXPECT_EQ(got.exit_status, 128 + 2) << got.err;
  EXPECT_EQ(got.figures["cards"][0]["peak_live_bytes"], 100 * mib);
  EXPECT_THAT(got.err, HasSubstr(" s the program has only used the processor, after it launched kernels"));
  // Programs that work on the host, that sleep, or that have launched nothing are not ended.
  EXPECT_EQ(program("launch compute=3 exit=7", "--settle 1s").exit_status, 7);
  EXPECT_EQ(simulate("--settle 1s -- timeout -s KILL 3 " GPUMEM_TEST_PROGRAM " launch hold").exit_status, 128 + 9);
  EXPECT_EQ(simulate("--settle 1s -- timeout -s KILL 3 " GPUMEM_TEST_PROGRAM " take=1 spin").exit_status, 128 + 9);
}

/// Whether the process still lives after some time to end.
bool lives(const std::string& pid) {
  const fs::path process = "/proc/" + pid;
  for (int i = 0; i < 500 && fs::exists(process / "exe"); ++i) ::usleep(10'000);
  std::error_code error;
  return !fs::read_symlink(process / "exe", error).empty();  // one that has ended and is not waited for has none
}

TEST_F(Simulate, EndsTheProgramsOfAShellThatItEnds) {
  const auto in_shell = [](const std::string& words) {
    return R"(sh -c 'sh -c "echo \$\$ > pid; exec )" GPUMEM_TEST_PROGRAM " " + words + R"("; touch after')";
  };
  const outcome got = simulate("--settle 2s --context 0 -- " + in_shell("take=100 read_forever"));
  EXPECT_THAT(got.err, HasSubstr("ended: for 2 s"));
  EXPECT_FALSE(fs::exists(folder_ + "/after"));
  std::string pid = content("pid");
  ASSERT_FALSE(pid.empty());
  EXPECT_FALSE(lives(pid.substr(0, pid.size() - 1)));

  const std::string command = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " simulate --quiet -- " +
                              in_shell("take=100 make=taken hold") + " > out 2> err & simulated=$!; cd " + folder_ +
                              "; while ! test -e taken; do sleep 0.05; done; kill -TERM $simulated; wait $simulated";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 128 + 15) << content("err");
  pid = content("pid");
  EXPECT_FALSE(lives(pid.substr(0, pid.size() - 1)));
}

TEST_F(Simulate, CountsEachProgramThatAProcessExecutes) {
  const outcome got = program("take=200 exec=take=100 take=20", "--context 0");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  ASSERT_EQ(got.figures["cards"].size(), 2U);
  EXPECT_EQ(got.figures["cards"][0]["peak_live_bytes"], 200 * mib);
  EXPECT_EQ(got.figures["cards"][1]["peak_live_bytes"], 120 * mib);
  EXPECT_EQ(got.figures["cards"][0]["pid"], got.figures["cards"][1]["pid"]);
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch;
  std::ofstream{folder_ + "/again.py"} << R"(import os, sys, torch
torch.take(int(sys.argv[1]))
if len(sys.argv) > 2: os.execv(sys.executable, [sys.executable, __file__, *sys.argv[2:]])
)";
  const outcome python = simulate("--context 0 --trace t.csv -- python3 again.py 300 30");
  EXPECT_EQ(python.exit_status, 0) << python.err;
  EXPECT_EQ(python.figures["cards"][0]["peak_live_bytes"], 300 * mib);
  EXPECT_EQ(python.figures["cards"][0]["peak_live_by"], "driver") << "it left no figures of its own";
  EXPECT_EQ(python.figures["cards"][1]["peak_live_bytes"], 30 * mib);
  EXPECT_EQ(python.figures["cards"][1]["peak_live_by"], "torch");
  EXPECT_THAT(content("t.csv"), HasSubstr(",31457280,"));
  EXPECT_THAT(python.err, HasSubstr("(300.00 MiB, no record)"));
}

TEST_F(Simulate, ServesTheProgramByAPolicy) {
  const outcome got = program("take=3 take=3 free take=3", "--policy growth --context 0");
  EXPECT_EQ(got.exit_status, 0) << got.out << got.err;
  const auto& card = got.figures["cards"][0];
  EXPECT_GE(card["peak_reserved_bytes"], 6 * mib);
  EXPECT_EQ(card["peak_reserved_bytes"], card["peak_live_bytes"]);  // the policy's requests to the driver
  const outcome limited = program("until_full=10", "--policy growth --limit 100MiB");
  EXPECT_THAT(limited.out, HasSubstr("blocks")) << limited.err;
  EXPECT_LE(limited.figures["cards"][0]["peak_reserved_bytes"], 100 * mib);
}

TEST_F(Simulate, ReportsRequestsThatTheLimitRefused) {
  const outcome got = program("until_full=100", "--card 2GiB --context 0 --policy growth --limit 1GiB");
  EXPECT_THAT(got.out, HasSubstr("7 blocks")) << got.err;  // 256 MiB are kept for what is not gpumem's
  ASSERT_EQ(got.figures["oom"].size(), 1U) << got.err;
  const auto& row = got.figures["oom"][0];
  EXPECT_EQ(row["function"], "cuMemAlloc");
  EXPECT_EQ(row["requested_bytes"], 100 * mib);
  EXPECT_EQ(row["used_bytes"], 700 * mib);
  EXPECT_THAT(row["why"].get<std::string>(), StartsWith("gpumem: limit 768.00 MiB reached with 700.00 MiB live"));
  EXPECT_THAT(row["why"].get<std::string>(), HasSubstr("GPUMEM_LIMIT=1.00 GiB is on the whole process"));
  // A refusal of the card is one row, although gpumem passes it on.
  const outcome full = program("until_full=100", "--card 1GiB --context 450MiB --policy growth");
  ASSERT_EQ(full.figures["oom"].size(), 1U) << full.err;
  EXPECT_EQ(full.figures["oom"][0]["why"], "more than is free");
}

#ifdef GPUMEM_TEST_TAKER
TEST_F(Simulate, ReportsRequestsThatTheAdapterOfPyTorchRefused) {
  const outcome got =
      simulate("--card 2GiB --context 0 -- env GPUMEM_LIMIT=256MiB GPUMEM_POLICY=growth " GPUMEM_TEST_TAKER " torch");
  ASSERT_EQ(got.figures["oom"].size(), 1U) << got.out << got.err;
  const auto& row = got.figures["oom"][0];
  EXPECT_EQ(row["function"], "gpumem_torch_alloc");
  EXPECT_EQ(row["requested_bytes"], 16 * mib);
  EXPECT_THAT(row["why"].get<std::string>(), StartsWith("gpumem: limit 256.00 MiB reached with 256.00 MiB live"));
}
#endif

TEST_F(Simulate, WarnsOfMemoryThatTheDoublesDoNotSupport) {
  const outcome got = program("take_3d=100 take_array take_array", "--card 1GiB --context 0");
  EXPECT_EQ(got.exit_status, 0);
  EXPECT_THAT(got.out, StartsWith("pitch 1024, 1024 by 1024\ncudaMallocArray: operation not supported\n"));
  EXPECT_EQ(got.figures["cards"][0]["peak_live_bytes"], 100 * mib);
  ASSERT_EQ(got.figures["warnings"].size(), 1U) << got.err;
  EXPECT_THAT(got.err, HasSubstr("functions that simulated cards do not support: 2, first cudaMallocArray; they were"));
  EXPECT_TRUE(program("take_3d=2000", "--card 1GiB").figures["warnings"].empty());
}

TEST_F(Simulate, WarnsOfProcessesThatHoldMoreThanTheCardTogether) {
  const auto both = [this](const std::string& first, const std::string& second, const std::string& options,
                           const std::string& environment = "SIMCUDA_SHARED=") {
    return simulate("--card 1GiB --context 0 " + options + " -- sh -c '" + first +
                        " " GPUMEM_TEST_PROGRAM " take=600; " + second + " " GPUMEM_TEST_PROGRAM " take=700'",
                    environment);
  };
  EXPECT_TRUE(both("", "", "", "").figures["warnings"].empty()) << "they share it, one after the other";
  const outcome got = both("", "", "");
  ASSERT_EQ(got.figures["warnings"].size(), 1U) << got.err;
  EXPECT_THAT(got.err, HasSubstr("2 processes took memory of card 0, each as if it had the card to itself: their peaks "
                                 "are 1.27 GiB together, more than its 1.00 GiB. If they run at the same time, "
                                 "they share it without SIMCUDA_SHARED="));
  EXPECT_TRUE(both("", "", "--shared sums-" + std::to_string(::getpid()), "").figures["warnings"].empty());
  const std::string second_card = "CUDA_VISIBLE_DEVICES=1";
  EXPECT_TRUE(both("", second_card, "--cards 2").figures["warnings"].empty()) << "each has a card";
  EXPECT_THAT(both(second_card, second_card, "--cards 2").err, HasSubstr("took memory of card 1, each as if"));
  const outcome fits = simulate("--card 1GiB --context 0 -- sh -c '" GPUMEM_TEST_PROGRAM
                                " take=1000; " GPUMEM_TEST_PROGRAM " attributes; " GPUMEM_TEST_PROGRAM " take=20'",
                                "SIMCUDA_SHARED=");
  EXPECT_TRUE(fits.figures["warnings"].empty()) << fits.figures["warnings"];
}

TEST_F(Simulate, RefusesAChildThatIsForkedAfterTheFirstCudaCall) {
  const std::string card = "--card 1GiB --context 0 --shared fork-" + std::to_string(::getpid());
  const outcome got = program("take=100 fork_take=50 take=10 memory", card);
  EXPECT_EQ(got.exit_status, 0) << got.out;
  EXPECT_EQ(got.out, "cudaMalloc: initialization error\ncudaMalloc: initialization error\n914 of 1024 MiB are free\n");
  EXPECT_EQ(got.figures["cards"].size(), 1U);
  EXPECT_EQ(got.figures["cards"][0]["peak_live_bytes"], 110 * mib);
  const outcome before = program("fork_take=50 take=10", "--card 1GiB --context 0");
  EXPECT_EQ(before.out, "cudaMalloc: initialization error\n") << "the child's child";
  ASSERT_EQ(before.figures["cards"].size(), 2U) << "a child of a process without CUDA has its own";
  EXPECT_EQ(before.figures["cards"][0]["peak_live_bytes"], 50 * mib);
}

TEST_F(Simulate, TracesBlocksOfAPolicy) {
  const outcome got = program("take=3 take=5 free", "--policy growth --trace t.csv");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(content("t.csv"), HasSubstr("allocate"));
  const outcome none = program("take=3", "--trace none.csv");
  EXPECT_EQ(none.exit_status, 1);
  EXPECT_THAT(none.err, HasSubstr("the program does not use PyTorch; --policy makes gpumem serve and record it"));
}

// A scratch block goes, and what stays is cut from its segment; or two blocks go, and one of both sizes comes.
TEST_F(Simulate, WhyNamesSettingsThatServeAProgramThatRanOut) {
  std::string kept;
  for (int i = 0; i < 14; ++i) kept += " take=2";
  for (const std::string& words : {"take=40 free" + kept + " take=40", "take=20 take=20 free" + kept + " take=40"}) {
    const outcome refused = program(words, "--card 76MiB --context 0 --policy growth --trace run.csv");
    EXPECT_NE(refused.exit_status, 0) << words;
    const std::string tool = "cd " + folder_ + " && " GPUMEM_PROGRAM;
    ASSERT_EQ(std::system((tool + " why run.csv --json why.json >why.txt").c_str()), 0) << words;
    ASSERT_EQ(std::system((tool + " plan run.csv -o run.plan >plan.txt").c_str()), 0) << words;
    const auto found = nlohmann::json::parse(content("why.json"));
    EXPECT_EQ(found["cause"], "fragmentation") << words;
    ASSERT_FALSE(found["served_by"].empty()) << words;
    for (const auto& each : found["served_by"]) {
      const std::string variables = each["set"];
      const std::size_t begin = variables.find('=') + 1;  // GPUMEM_POLICY comes first
      const std::string policy = variables.substr(begin, variables.find(' ') - begin);
      const outcome again =
          simulate("--card 76MiB --context 0 --policy " + policy + " -- " GPUMEM_TEST_PROGRAM " " + words, variables);
      EXPECT_EQ(again.exit_status, 0) << variables << "; " << words << again.err;
    }
  }
}

TEST_F(Simulate, SharesACardBetweenPrograms) {
  const std::string name = "test-" + std::to_string(::getpid());
  const std::string card = "--context 100MiB --card 1GiB --shared " + name;
  const std::string other = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " simulate --quiet " + card +
                            " -- " GPUMEM_TEST_PROGRAM " take=100 make=taken await=seen > other 2>&1 &";
  ASSERT_EQ(std::system(other.c_str()), 0);
  // A killed process holds no memory; the 200 MiB belong to the other process.
  EXPECT_EQ(program("await=taken take=500 kill", card).exit_status, 137);
  EXPECT_EQ(program("memory", card).out, "724 of 1024 MiB are free\n");
  const outcome full = program("take=800", card);
  EXPECT_EQ(full.exit_status, 9);
  EXPECT_THAT(full.err, HasSubstr("more than is free; others hold 200.00 MiB"));
  EXPECT_EQ(full.figures["oom"][0]["others_bytes"], 200 * mib);
  const outcome larger = program("memory", "--card 2GiB --shared " + name);
  EXPECT_EQ(larger.exit_status, 9);
  EXPECT_THAT(larger.err, HasSubstr("expected the same --card and --cards"));
  EXPECT_EQ(program("make=seen").exit_status, 0);
  const std::string file = "/dev/shm/gpumem-simulated-" + std::to_string(::getuid()) + "-" + name;
  for (int i = 0; i < 1000 && fs::exists(file); ++i) ::usleep(10'000);
  EXPECT_FALSE(fs::exists(file)) << "the last to end removes it";
  EXPECT_EQ(program("memory", card).out, "924 of 1024 MiB are free\n");
  EXPECT_EQ(program("take=800 exec=memory", card).out, "924 of 1024 MiB are free\n") << "its next program has nothing";
}

TEST_F(Simulate, PassesMemoryFromOneProgramToAnother) {
  const std::string name = "ipc-" + std::to_string(::getpid());
  const std::string card = "--context 100MiB --card 1GiB --shared " + name;
  const std::string other = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " simulate --quiet " + card +
                            " -- " GPUMEM_TEST_PROGRAM
                            " take=200 export=block share_pages=100:pages make=ready await=seen > other 2>&1 &";
  ASSERT_EQ(std::system(other.c_str()), 0);
  // 100 + 200 + 100 MiB of the other process, 100 of this process's context. Memory opened by both counts once.
  const outcome opened = program("await=ready memory open=block memory close memory", card);
  EXPECT_EQ(opened.exit_status, 0) << opened.err << opened.out << content("other");
  EXPECT_EQ(opened.out,
            "524 of 1024 MiB are free\nopened on card 0, type 2, its event: cudaSuccess; 524 of 1024 MiB are free\n"
            "524 of 1024 MiB are free\n524 of 1024 MiB are free\n");
  EXPECT_EQ(opened.figures["cards"][0]["peak_used_bytes"], 100 * mib);
  const outcome imported = program("import_pages=pages drop_pages memory drop_pages", card);
  EXPECT_EQ(imported.out, "524 of 1024 MiB are free\n524 of 1024 MiB are free\nrelease: error 1\n") << imported.err;

  // No world in common, a process that has ended, this process itself.
  const auto own_world = [this](const std::string& words) {
    return simulate("-- " GPUMEM_TEST_PROGRAM " " + words, "SIMCUDA_SHARED=").out;
  };
  EXPECT_EQ(own_world("open=block"), "open: operation not supported\n");
  EXPECT_EQ(own_world("import_pages=pages"), "import: error 801\n");
  EXPECT_EQ(own_world("take=1 share_pages=2:mine"), "export: error 801\n");
  EXPECT_EQ(program("open=block").out, "open: invalid resource handle\n") << "of another run";
  EXPECT_EQ(program("take=1 export=own open=own", card).out, "open: invalid device context\n");
  EXPECT_EQ(program("make=seen").exit_status, 0);
  const std::string file = "/dev/shm/gpumem-simulated-" + std::to_string(::getuid()) + "-" + name;
  for (int i = 0; i < 1000 && fs::exists(file); ++i) ::usleep(10'000);
  EXPECT_EQ(program("open=block", card).out, "open: invalid resource handle\n");
}

TEST_F(Simulate, OpensABlockOfAnotherCardThanTheCurrentOne) {
  const std::string name = "ipc-cards-" + std::to_string(::getpid());
  const std::string card = "--context 100MiB --card 1GiB --cards 2 --shared " + name;
  const std::string other = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " simulate --quiet " + card +
                            " -- " GPUMEM_TEST_PROGRAM
                            " card=1 take=200 export=block make=ready await=seen > other 2>&1 &";
  ASSERT_EQ(std::system(other.c_str()), 0);
  const outcome opened = program("await=ready card=0 open=block close card=1 open=block close", card);
  EXPECT_EQ(opened.exit_status, 0) << opened.err << opened.out << content("other");
  EXPECT_EQ(program("make=seen").exit_status, 0);
}

/// Two streams of a Python program over the runtime. With `order` one stream waits for the other before the free.
constexpr const char* two_streams = R"(import ctypes, sys
cuda = ctypes.CDLL("libcudart.so.13")
handle = ctypes.c_void_p

def made(function, *words):
    out = handle()
    assert function(ctypes.byref(out), *words) == 0
    return out

def work(ordered):
    mine, other, event = made(cuda.cudaStreamCreate), made(cuda.cudaStreamCreate), made(cuda.cudaEventCreate)
    block = made(cuda.cudaMallocAsync, ctypes.c_size_t(1 << 20), mine)
    cuda.cudaEventRecord(event, mine)
    cuda.cudaStreamWaitEvent(other, event, 0)
    cuda.cudaMemsetAsync(block, 0, ctypes.c_size_t(1 << 20), other)
    if ordered:
        cuda.cudaEventRecord(event, other)
        cuda.cudaStreamWaitEvent(mine, event, 0)
    cuda.cudaFreeAsync(block, mine)
    made(cuda.cudaMallocAsync, ctypes.c_size_t(1 << 20), mine)

work(sys.argv[1] == "ordered")
)";

/// If the program read values that no kernel computed, the report says so before any verdict.
TEST_F(Simulate, SaysBeforeAVerdictThatItRestsOnUntrueValues) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/reads.py"} << R"(import ctypes
cuda = ctypes.CDLL("libcudart.so.13")

def length(block):
    here = ctypes.c_int()
    cuda.cudaMemcpy(ctypes.byref(here), block, ctypes.c_size_t(4), 2)
    return here.value

block = ctypes.c_void_p()
cuda.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(1 << 20))
while length(block) == 0 and cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64 << 20)) == 0:
    pass
)";
  const outcome got = simulate("--card 1GiB --context 0 -- python3 reads.py");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  const std::size_t said = got.err.find("The run depends on untrue values if they decide a size or an end: ");
  const std::size_t verdict = got.err.find("out of memory, unless untrue values made it, at ");
  ASSERT_NE(said, std::string::npos) << got.err;
  ASSERT_NE(verdict, std::string::npos) << got.err;
  EXPECT_LT(said, verdict);
  EXPECT_THAT(got.err, HasSubstr("reads.py:6 in length"));
  EXPECT_THAT(got.err, Not(HasSubstr("out of memory at ")));
  EXPECT_THAT(program("take=1").err, Not(HasSubstr("untrue")));

  const std::string predict =
      "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --context 0 --capacity 2GiB ";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + "-- " GPUMEM_TEST_PROGRAM " take=100 read > out 2> err").c_str())), 0);
  EXPECT_THAT(content("out"), HasSubstr("Only if no size depends on untrue values (*): the host read values"));
  EXPECT_THAT(content("out"), HasSubstr(" yes* "));
  EXPECT_THAT(content("out"), Not(HasSubstr(" yes ")));
  EXPECT_EQ(WEXITSTATUS(std::system((predict + "-- " GPUMEM_TEST_PROGRAM " take=100 > out 2> err").c_str())), 0);
  EXPECT_THAT(content("out"), HasSubstr(" yes "));
}

TEST_F(Simulate, WritesJsonToStandardOutput) {
  const std::string command = "cd " + folder_ +
                              " && timeout 60 " GPUMEM_PROGRAM " simulate --json - -- " GPUMEM_TEST_PROGRAM
                              " take=1 read > out 2> err";
  ASSERT_EQ(WEXITSTATUS(std::system(command.c_str())), 0) << content("err");
  const auto figures = nlohmann::json::parse(content("out"), nullptr, false);
  ASSERT_TRUE(figures.is_object()) << content("out");
  EXPECT_EQ(figures["cards"][0]["peak_live_bytes"], mib + 4);
  EXPECT_THAT(content("err"), HasSubstr("read 42")) << "the program's own output";
  EXPECT_FALSE(fs::exists(folder_ + "/-"));
}

TEST_F(Simulate, KeepsRefusedRequestsOfPyTorchInTheTrace) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch << R"(
def refuse(mib):
    _entries.append({"action": "oom", "device_free": 1, "size": mib << 20, "stream": 0, "time_us": len(_entries)})
)";
  std::ofstream{folder_ + "/runs_out.py"} << "import torch\ntorch.take(10)\ntorch.refuse(5)\n";
  const outcome got = simulate("--trace run.csv -- python3 runs_out.py");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(content("run.csv"), HasSubstr(",allocate failure,(nil),5242880,0\n"));
}

/// transformers looks for torch before it imports it.
TEST_F(Simulate, RecordsAProgramThatLooksForPyTorchFirst) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch << "_cuda_calls = []\ncuda._lazy_call = _cuda_calls.append\n";
  std::ofstream{folder_ + "/looks.py"}
      << "import importlib.util\nassert importlib.util.find_spec('torch') is not None\n"
         "import torch\nassert torch._cuda_calls, 'nothing was asked of torch'\n"
         "torch.take(10)\n";
  const outcome got = simulate("--trace run.csv -- python3 looks.py");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(content("run.csv"), HasSubstr(",10485760,"));
}

TEST_F(Simulate, ServesManagedMemoryBeyondTheCard) {
  const outcome got = program("managed=700 managed=700 memory take=100", "--card 1GiB --context 0");
  EXPECT_EQ(got.exit_status, 0) << got.out << got.err;
  EXPECT_EQ(got.out, "324 of 1024 MiB are free\n");
  EXPECT_TRUE(got.figures["oom"].empty());
  EXPECT_EQ(got.figures["cards"][0]["peak_live_bytes"], 1500 * mib);
  EXPECT_EQ(got.figures["cards"][0]["peak_used_bytes"], 800 * mib);
  EXPECT_THAT(got.err, HasSubstr("700.00 MiB of managed memory had no room on the card"));
  EXPECT_EQ(program("take=1100", "--card 1GiB --context 0").exit_status, 9) << "other memory is not";
}

TEST_F(Simulate, NvmlKnowsTheCardBeforeTheDriverIsCalled) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/nvml.py"} << R"(import ctypes
nvml, cuda = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
memory, card, uuid = (ctypes.c_ulonglong * 3)(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card))
nvml.nvmlDeviceGetMemoryInfo(card, memory)
print(memory[0] >> 20, memory[1] >> 20)
cuda.cuInit(0)
print(cuda.cuDeviceGetUuid(uuid, 0))
)";
  const outcome got = simulate("--card 3GiB -- python3 nvml.py");
  EXPECT_EQ(got.out, "3072 3072\n0\n") << got.err;
}

TEST_F(Simulate, WarnsOfAProgramThatLeavesTheCardUnused) {
  const char* const warning = "took no memory of a card: if it should have, it ran on the CPU";
  EXPECT_THAT(program("memory").err, HasSubstr(warning));
  EXPECT_THAT(program("take=1 memory").err, Not(HasSubstr(warning)));
  const outcome failed = program("memory exit=3");
  EXPECT_THAT(failed.err, HasSubstr("ended with status 3 before it took memory of a card"));
  EXPECT_THAT(failed.err, Not(HasSubstr("ran on the CPU"))) << "it may have died before its first request";
  EXPECT_THAT(program("take=1 memory exit=3").err, Not(HasSubstr("memory of a card")));
}

TEST_F(Simulate, RefereeNamesTheLineOfPython) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/two.py"} << two_streams;
  const outcome fine = simulate("--referee -- python3 two.py ordered");
  EXPECT_EQ(fine.exit_status, 0) << fine.out << fine.err;
  EXPECT_EQ(fine.figures["hazards"], 0) << fine.err;
  EXPECT_THAT(fine.err, HasSubstr("referee: no block went on while a stream might still use it"));

  const outcome early = simulate("--referee -- python3 two.py unordered");
  EXPECT_EQ(early.exit_status, 0) << early.out << early.err;
  EXPECT_EQ(early.figures["hazards"], 1) << early.err;
  ASSERT_EQ(early.figures["hazards_at"].size(), 1U);
  const auto& row = early.figures["hazards_at"][0];
  EXPECT_EQ(row["kind"], "early_reuse");
  EXPECT_EQ(row["function"], "cuMemAllocAsync");
  EXPECT_EQ(row["bytes"], mib);
  EXPECT_THAT(row["place"].get<std::string>(), ::testing::EndsWith("two.py:7 in made"));
  EXPECT_THAT(early.err, HasSubstr("two.py:7 in made: 1.00 MiB that stream 0x"));
  EXPECT_FALSE(simulate("-- python3 two.py unordered").figures.contains("hazards")) << "only where it is asked for";
}

TEST_F(Simulate, RefereeSeesTheBlocksThatAPolicyServes) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/two.py"} << two_streams;
  for (const std::string policy : {"growth", "expandable"}) {
    const outcome fine = simulate("--referee --policy " + policy + " -- python3 two.py ordered");
    EXPECT_EQ(fine.exit_status, 0) << fine.out << fine.err;
    EXPECT_EQ(fine.figures["hazards"], 0) << fine.err;
    EXPECT_THAT(fine.err, HasSubstr("referee: no block went on while a stream might still use it (1 uses seen)"));

    const outcome early = simulate("--referee --policy " + policy + " -- python3 two.py unordered");
    EXPECT_EQ(early.exit_status, 0) << early.out << early.err;
    EXPECT_THAT(early.err, Not(HasSubstr("Traceback"))) << "the referee's own part";
    ASSERT_EQ(early.figures["hazards"], 1) << early.err;
    EXPECT_EQ(early.figures["hazards_at"][0]["function"], "cuMemAllocAsync");
    EXPECT_THAT(early.figures["hazards_at"][0]["place"].get<std::string>(), ::testing::EndsWith("two.py:7 in made"));
  }
}

/// A policy serves PyTorch's segments, and PyTorch cuts blocks from them. The referee judges each block, and no block
/// twice.
TEST_F(Simulate, RefereeSeesBlocksWithinServedOnes) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/cut.py"} << R"(import ctypes, sys, gpumem_referee
cuda, double = ctypes.CDLL("libcudart.so.13"), gpumem_referee._double
def made(call, *arguments):
    out = ctypes.c_void_p()
    assert call(ctypes.byref(out), *arguments) == 0
    return out
mine, other = made(cuda.cudaStreamCreate), made(cuda.cudaStreamCreate)
for _ in range(2):
    segment = made(cuda.cudaMalloc, ctypes.c_size_t(4 << 20))
    double.simcuda_handed_out(segment.value, 1 << 20, mine)
    double.simcuda_use(other, 1000000, segment.value, 1 << 20)
    double.simcuda_given_back(segment.value)
    if sys.argv[1] == "ordered":
        cuda.cudaDeviceSynchronize()
    double.simcuda_handed_out(segment.value, 1 << 20, mine)
    double.simcuda_given_back(segment.value)
    cuda.cudaFree(segment)
)";
  for (const std::string options : {"", "--policy growth "}) {
    const outcome fine = simulate("--referee " + options + "-- python3 cut.py ordered");
    EXPECT_EQ(fine.exit_status, 0) << fine.out << fine.err;
    EXPECT_EQ(fine.figures["hazards"], 0) << fine.err;
    const outcome early = simulate("--referee " + options + "-- python3 cut.py unordered");
    EXPECT_EQ(early.exit_status, 0) << early.out << early.err;
    EXPECT_EQ(early.figures["hazards"], 2) << early.err;
  }
}

TEST_F(Simulate, RefereeThatSawNothingGivesNoVerdict) {
  for (const char* options : {"--referee", "--referee --policy growth"}) {
    const outcome got = program("take=1 launch free", options);
    EXPECT_EQ(got.exit_status, 0) << got.err;
    EXPECT_EQ(got.figures["uses_seen"], 0);
    EXPECT_THAT(got.err, HasSubstr("referee: no verdict: it saw no use of a block"));
    EXPECT_THAT(got.err, Not(HasSubstr("no block went on")));
  }
}

TEST_F(Simulate, RefereeSaysWhereNoLineIsKnown) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  // The signal is blocked, as in threads of libraries that block all signals.
  std::ofstream{folder_ + "/two.py"}
      << "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMAX - 2})\n"
      << two_streams;
  const outcome early = simulate("--referee -- python3 two.py unordered");
  EXPECT_EQ(early.exit_status, 0) << early.out << early.err;
  EXPECT_EQ(early.figures["hazards"], 1) << early.err;
  EXPECT_EQ(early.figures["hazards_at"][0]["place"], "");
  EXPECT_THAT(early.err, HasSubstr("no line of Python: 1.00 MiB that stream 0x"));
}

TEST_F(Simulate, StandsInForTheLibraries) {
  for (const char* each :
       {"libcublas.so.13:cublasCreate_v2", "libcublasLt.so.13:cublasLtCreate", "libcudnn.so.9:cudnnCreate",
        "libcusolver.so.12:cusolverDnCreate", "libcusparse.so.12:cusparseCreate", "libcufft.so.12:cufftCreate",
        "libnvidia-ml.so.1:nvmlDeviceGetCount_v2", "libcupti.so.13:cuptiGetVersion",
        "libnvToolsExt.so.1:nvtxRangePushA", "libcublas.so.13:cublasSgemm_v2"}) {
    if (std::string_view{each}.ends_with("cublasSgemm_v2")) continue;  // takes a handle, not the address of one
    EXPECT_EQ(program(std::string{"library="} + each).out, std::string{each} + " = 0\n");
  }
  EXPECT_EQ(program("library=libcusolver.so.12:cusolverDnSgetrf_bufferSize").out,
            "libcusolver.so.12:cusolverDnSgetrf_bufferSize = 9\n");  // not supported
  const outcome logged =
      simulate("-- " GPUMEM_TEST_PROGRAM " library=libnccl.so.2:ncclCommRevoke library=libnccl.so.2:ncclCommRevoke",
               "SIMCUDA_LOG=1");
  EXPECT_EQ(logged.err.find("ncclCommRevoke"), logged.err.rfind("ncclCommRevoke")) << "once: " << logged.err;
  EXPECT_THAT(logged.err, HasSubstr("simcuda: ncclCommRevoke: success, nothing computed"));
}

/// Python that makes operations by cuDNN's graph interface, as PyTorch does, and asks for the workspace of their plan.
constexpr char workspaces_of_cudnn[] = R"(import ctypes, math
cudnn = ctypes.CDLL("libcudnn.so.9")
i64 = ctypes.c_int64
ctypes.CDLL("libcudart.so.13").cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 20))

def make(type=0, **attributes):
    made = ctypes.c_void_p()
    cudnn.cudnnBackendCreateDescriptor(type, ctypes.byref(made))
    for name, (kind, values) in attributes.items():
        of = {3: i64, 1: ctypes.c_int, 15: ctypes.c_void_p}[kind]
        row = (of * len(values))(*values)
        assert cudnn.cudnnBackendSetAttribute(made, int(name[1:]), kind, i64(len(values)), row) == 0
    return made

def operation(type, **named):
    made = make(type, **{name: (15, [each.value]) for name, each in named.items()})
    for each in named.values():
        cudnn.cudnnBackendDestroyDescriptor(each)  # as PyTorch does
    return made

def tensor(sizes, kind, last=False):
    strides = [math.prod(sizes[i + 1:]) for i in range(len(sizes))]
    if last:
        strides = [strides[0], 1, sizes[1] * sizes[3], sizes[1]]
    return make(17, _901=(1, [kind]), _902=(3, sizes), _903=(3, strides))

def workspace(*operations):
    graph = make(15, _801=(15, [each.value for each in operations]))
    heuristic, found = make(4, _201=(15, [graph.value])), make(3)
    row = (ctypes.c_void_p * 1)(found)
    assert cudnn.cudnnBackendGetAttribute(heuristic, 202, 15, i64(1), None, row) == 0
    plan, bytes, count, own = make(5, _401=(15, [found.value])), i64(), i64(), make(3)
    row = (ctypes.c_void_p * 1)(own)  # as XLA asks for the configuration of a plan
    assert cudnn.cudnnBackendGetAttribute(plan, 401, 15, i64(1), ctypes.byref(count), row) == 0
    assert (count.value, row[0]) == (1, own.value), "the caller's descriptor is filled in"
    assert cudnn.cudnnBackendGetAttribute(plan, 402, 3, i64(1), None, ctypes.byref(bytes)) == 0
    return bytes.value

single, half, bfloat16 = 0, 2, 9
)";

TEST_F(Simulate, KeepsConvertedTensorsInCudnnsWorkspaceOnRequest) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/conv.py"} << workspaces_of_cudnn << R"(
def of(kind, channels, last=False):
    x, w, y = (tensor(s, kind, last) for s in ([2, channels, 20, 20], [32, channels, 3, 3], [2, 32, 20, 20]))
    return workspace(operation(10, _703=w, _704=x, _705=y))
print(of(half, 16), of(bfloat16, 16), of(single, 16), of(half, 3), of(half, 16, last=True))
)";
  // Input, filter and output of 16-bit values: 2 * (2 * 16 * 400 + 32 * 16 * 9 + 2 * 32 * 400).
  EXPECT_EQ(simulate("--cudnn-workspace converted -- python3 conv.py").out, "86016 86016 0 0 0\n");
  EXPECT_EQ(simulate("-- python3 conv.py").out, "0 0 0 0 0\n");
  const std::string predict = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --cudnn-workspace ";
  std::system((predict + "converted -- python3 conv.py > out 2> err").c_str());
  EXPECT_THAT(content("err"), StartsWith("86016 86016 0 0 0\n86016 86016 0 0 0\n")) << "both runs";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + "much -- true > out 2> err").c_str())), 2);
  EXPECT_THAT(content("err"), HasSubstr("--cudnn-workspace much: expected 0 or converted"));
}

/// The figures are those of PyTorch 2.11 with cuDNN 9.19 on an H100 (bench/results/h100): 32 heads of queries share 8
/// of keys and values.
TEST_F(Simulate, KnowsTheWorkspaceOfAttentionOnACard) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/attention.py"} << workspaces_of_cudnn << R"(
product = make(19)
def sum_of(kind, result):
    return operation(22, _1610=tensor([4, 32, 1024, 64], kind), _1611=tensor(result, kind))
per_row, per_group = sum_of(single, [4, 32, 1024, 1]), [sum_of(bfloat16, [4, 8, 1024, 64]) for _ in range(2)]
print(workspace(product, per_row, product), workspace(per_row, product, product, product, *per_group))
attention_of = lambda tokens: workspace(operation(41, _2800=tensor([4, 32, tokens, 64], bfloat16)))
print(attention_of(197), attention_of(1), workspace(product), workspace(*per_group))
)";
  EXPECT_EQ(simulate("-- python3 attention.py").out, "256 33554688\n256 0 0 0\n");
}

/// Data-parallel training compares values of all ranks before its first step: each rank has this rank's values.
TEST_F(Simulate, AssumesThatOtherRanksSendTheSameValues) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/ranks.py"} << R"(import ctypes
cuda, nccl = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libnccl.so.2")
class unique_id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
size, int64, to_device, to_host = ctypes.c_size_t, 4, 1, 2
mine, all = ctypes.c_void_p(), ctypes.c_void_p()
cuda.cudaMalloc(ctypes.byref(mine), size(16))
cuda.cudaMalloc(ctypes.byref(all), size(64))
cuda.cudaMemcpy(mine, (ctypes.c_int64 * 2)(7, 8), size(16), to_device)
ranks = ctypes.c_void_p()
assert nccl.ncclCommInitRank(ctypes.byref(ranks), 4, unique_id(), 1) == 0
assert nccl.ncclAllGather(mine, all, size(2), int64, ranks, None) == 0
seen = (ctypes.c_int64 * 8)()
cuda.cudaMemcpy(seen, all, size(64), to_host)
print(*seen)
assert nccl.ncclReduceScatter(all, mine, size(1), int64, 0, ranks, None) == 0
assert nccl.ncclAllReduce(mine, all, size(1), int64, 0, ranks, None) == 0
cuda.cudaMemcpy(seen, all, size(8), to_host)
print(seen[0], nccl.ncclAllGather(mine, all, size(2), 99, ranks, None))
)";
  const outcome got = simulate("-- python3 ranks.py");
  EXPECT_EQ(got.out, "7 8 7 8 7 8 7 8\n8 4\n") << got.err;
}

TEST_F(Simulate, SaysThatAProgramHasNoCuda) {
  const outcome got = simulate("-- sh -c 'exit 3'");
  EXPECT_EQ(got.exit_status, 3);
  ASSERT_EQ(got.figures["warnings"].size(), 1U);
  EXPECT_THAT(got.err, HasSubstr("never initialised CUDA: nothing was simulated"));
  const bool both = fs::exists(fs::path{GPUMEM_PROGRAM}.parent_path() / "../simcuda/cuda12/libcudart.so.12");
  EXPECT_THAT(got.err,
              HasSubstr(both ? "a version other than 12 or 13," : "a version other than 13 (12 needs a build with"));
}

TEST_F(Simulate, SaysOnlyThatACommandIsMissing) {
  const outcome got = simulate("-- no-such-program");
  EXPECT_EQ(got.exit_status, 127);
  EXPECT_TRUE(got.figures["warnings"].empty()) << got.figures["warnings"];
  EXPECT_THAT(got.err, StartsWith("gpumem: no-such-program: no such command"));
}

#ifdef GPUMEM_TEST_STATIC_PROGRAM
TEST_F(Simulate, SaysThatNvidiasOwnRuntimeDoesNotRunOnIt) {
  const outcome got = simulate("-- " GPUMEM_TEST_STATIC_PROGRAM " take=10");
  EXPECT_EQ(got.exit_status, 9);
  const std::string words = "contains NVIDIA's own CUDA runtime";
  EXPECT_THAT(got.err, HasSubstr("static_program: " + words));
  std::ifstream script{GPUMEM_SOURCES "/scripts/other_frameworks"};
  EXPECT_THAT((std::string{std::istreambuf_iterator<char>{script}, {}}), HasSubstr(words))
      << "it looks for these words";
  EXPECT_THAT(got.err, HasSubstr("nvcc -cudart shared"));
}
#endif

TEST_F(Simulate, RefusesWordsThatMeanNothing) {
  const struct {
    const char* words;
    const char* reason;
  } cases[] = {{"--card h1000 -- true", "expected a card's name (--card list prints them)"},
               {"--card 1MiB -- true", "or its memory from 64MiB on"},
               {"--cards 0 -- true", "--cards 0: expected from 1 to 16"},
               {"--values 10000000 -- true", "--values: Value 10000000 not in range 0 to 9999999"},
               {"--cards 17 -- true", "expected from 1 to 16"},
               {"--shared a/b -- true", "--shared a/b: expected 1 to 64 letters, digits, _ and -"},
               {"--context much -- true", "--context"},
               {"--settle soon -- true", "--settle soon: expected a time such as 30s, 10m or 2h"},
               {"--cudnn-workspace much -- true", "--cudnn-workspace much: expected 0 or converted"},
               {"--policy none_such -- true", "none_such"},
               {"", "no command; expected gpumem simulate [OPTIONS] -- COMMAND..."}};
  for (const auto& each : cases) {
    const outcome got = simulate(each.words);
    EXPECT_EQ(got.exit_status, 2) << each.words;
    EXPECT_THAT(got.err, HasSubstr(each.reason)) << each.words;
  }
  EXPECT_EQ(simulate("-- /no/such/program").exit_status, 127);
  EXPECT_THAT(simulate("--card list").out, HasSubstr("NVIDIA H200"));
}

TEST_F(Simulate, PredictsWhichCardsHoldTheProgram) {
  const std::string of = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --context 0 --capacity 64MiB ";
  const std::string run = "-- " GPUMEM_TEST_PROGRAM " take=100 take=200 free take=50 > out 2> err";
  EXPECT_EQ(WEXITSTATUS(std::system((of + run).c_str())), 3) << content("err");
  EXPECT_THAT(content("out"), HasSubstr("300.00 MiB live at the peak on h100 (--card); context 0 B"));
  EXPECT_THAT(content("out"), HasSubstr("64MiB  every one  no"));
  EXPECT_EQ(WEXITSTATUS(std::system((of + "--capacity 1GiB --json " + run).c_str())), 0) << content("err");
  const auto figures = nlohmann::json::parse(content("out"));
  EXPECT_EQ(figures["peak_live_bytes"], 300 * mib);
  bool native = false;
  for (const auto& row : figures["results"]) {
    EXPECT_EQ(row["fits"], row["capacity"] == "1GiB") << row;
    if (row["capacity"] != "1GiB" || row["policy"] != "native") continue;
    native = true;
    EXPECT_EQ(row["peak_reserved_bytes"], 300 * mib);
    EXPECT_EQ(row["by"], "measured");
  }
  EXPECT_TRUE(native);
}

/// The row of a capacity and policy in `predict --json`; null if there is none.
nlohmann::json row_of(const nlohmann::json& figures, const std::string& capacity, const std::string& policy) {
  for (const auto& row : figures["results"]) {
    if (row["capacity"] == capacity && row["policy"] == policy) return row;
  }
  return nullptr;
}

TEST_F(Simulate, PredictsWithTheMemoryThatGpumemDoesNotServe) {
  const std::string predict =
      "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --context 0 --capacity 1GiB --capacity 400MiB ";
  const std::string program = "-- " GPUMEM_TEST_PROGRAM " take=100 managed=400 > out 2> err";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + "--json " + program).c_str())), 0) << content("err");
  auto figures = nlohmann::json::parse(content("out"), nullptr, false);
  EXPECT_EQ(figures["outside_bytes"], 400 * mib);
  EXPECT_THAT(content("err"),
              HasSubstr("400.00 MiB were taken outside the allocations that gpumem serves (the peak of"));
  EXPECT_EQ(row_of(figures, "1GiB", "native")["peak_reserved_bytes"], 500 * mib);
  auto caching = row_of(figures, "1GiB", "caching");
  EXPECT_EQ(caching["peak_reserved_bytes"], 500 * mib);
  EXPECT_THAT(caching["settings"].get<std::string>(), HasSubstr("GPUMEM_LIMIT=624MiB"));
  for (const auto& row : figures["results"]) EXPECT_EQ(row["fits"], row["capacity"] == "1GiB") << row;

  const std::string enough = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --json --context 0 ";
  EXPECT_EQ(WEXITSTATUS(std::system((enough + "-- " GPUMEM_TEST_PROGRAM " take=100 > out 2> err").c_str())), 0);
  EXPECT_EQ(nlohmann::json::parse(content("out"), nullptr, false)["outside_bytes"], 0);
  EXPECT_EQ(content("err"), "");
}

/// A line in the file `runs` for each run of the program; the third one ends with the status.
std::string counted(const std::string& program, int third) {
  return "-- sh -c 'echo run >> runs && " + program + " && test $(wc -l < runs) -ne 3 || exit " +
         std::to_string(third) + "' > out 2> err";
}

TEST_F(Simulate, PredictsWhatARunUnderExpandableReserves) {
  const std::string program = GPUMEM_TEST_PROGRAM " take=40 take=300 launch free take=60 take=330 launch take_3d=1";
  const std::string predict = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --capacity 2GiB --json ";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + counted(program, 0)).c_str())), 0) << content("err");
  EXPECT_EQ(content("runs"), "run\nrun\nrun\n") << "alone, recorded, under expandable";
  EXPECT_EQ(content("err"), "pitch 1024, 1024 by 1024\npitch 1024, 1024 by 1024\n") << "the third run prints nothing";
  const auto row = row_of(nlohmann::json::parse(content("out"), nullptr, false), "2GiB", "expandable");
  EXPECT_EQ(row["by"], "measured");
  const outcome ran = simulate("--card 2GiB -- " GPUMEM_PROGRAM " run -- " + program, row["settings"]);
  EXPECT_EQ(row["peak_reserved_bytes"], ran.figures["cards"][0]["peak_reserved_bytes"]) << ran.err;
}

TEST_F(Simulate, PredictsByAReplayWhereTheProgramRunsOnlyOnce) {
  const std::string once = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --json --once ";
  EXPECT_EQ(WEXITSTATUS(std::system((once + counted(GPUMEM_TEST_PROGRAM " take=40", 1)).c_str())), 0);
  EXPECT_EQ(content("runs"), "run\nrun\n") << "alone, recorded";
  EXPECT_FALSE(row_of(nlohmann::json::parse(content("out"), nullptr, false), "h100", "expandable").contains("by"));
  EXPECT_EQ(content("err"), "");
}

TEST_F(Simulate, SaysWhyAPeakIsAReplays) {
  const std::string predict = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --json ";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + counted(GPUMEM_TEST_PROGRAM " take=40", 7)).c_str())), 0);
  EXPECT_THAT(content("err"), HasSubstr("on h100 is a replay's, which may be some percent apart: a run of the program "
                                        "with it gave none: the program ended with status 7"));
  const auto row = row_of(nlohmann::json::parse(content("out"), nullptr, false), "h100", "expandable");
  EXPECT_EQ(row["peak_reserved_bytes"], 40 * mib);
  EXPECT_FALSE(row.contains("by"));
}

TEST_F(Simulate, AMeasuredRunThatHoldsLessIsNoMeasure) {
  const std::string predict = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --json ";
  const std::string less = "-- sh -c 'echo run >> runs; test $(wc -l < runs) -eq 3 && exec " GPUMEM_TEST_PROGRAM
                           " take=10; exec " GPUMEM_TEST_PROGRAM " take=40' > out 2> err";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + less).c_str())), 0) << content("err");
  EXPECT_THAT(content("err"), HasSubstr("it held 16.00 MiB, and the recorded run 40.00 MiB: it did not do the same"));
  EXPECT_EQ(row_of(nlohmann::json::parse(content("out"), nullptr, false), "h100", "expandable")["peak_reserved_bytes"],
            40 * mib);
}

TEST_F(Simulate, AnInterruptEndsAPredictionInAMeasuredRun) {
  const std::string predict =
      "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --capacity 1GiB --capacity 2GiB ";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + counted(GPUMEM_TEST_PROGRAM " take=40", 143)).c_str())), 143);
  EXPECT_EQ(content("runs"), "run\nrun\nrun\n") << "none for the second capacity";
  EXPECT_THAT(content("err"), HasSubstr("predict: interrupted"));
}

TEST_F(Simulate, MakesRunsReproducible) {
  const std::string seed = "-- sh -c 'echo $PYTHONHASHSEED'";
  EXPECT_EQ(simulate(seed).out, "0\n");
  EXPECT_EQ(simulate(seed, "PYTHONHASHSEED=random").out, "random\n") << "the user's own";
  if (std::system("setarch -R true 2>/dev/null") != 0) GTEST_SKIP() << "fixed addresses are forbidden here";
  EXPECT_EQ(simulate("-- cat /proc/self/personality").out, "00040000\n");
}

TEST_F(Simulate, PredictsNothingFromARunWithoutGpumemsFigures) {
  const std::string predict = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict -- ";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + GPUMEM_TEST_PROGRAM " managed=10 > out 2> err").c_str())), 1);
  EXPECT_THAT(content("err"), HasSubstr("gpumem served no allocation of it"));
  EXPECT_EQ(content("out"), "");
}

TEST_F(Simulate, FitNamesTheSmallestCard) {
  const std::string fit = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " fit ";
  const std::string program = "-- " GPUMEM_TEST_PROGRAM " take=9000 take=9000 take=5600 ";
  EXPECT_EQ(WEXITSTATUS(std::system((fit + program + "> out 2> err").c_str())), 0) << content("err");
  EXPECT_THAT(content("out"), HasSubstr("take=9000 take=9000 take=5600 fits rtx4090 (23.52 GiB) with cudaMalloc, and "
                                        "leaves 30.00 MiB of it. Simulated.\n"));
  EXPECT_THAT(content("out"), HasSubstr("rtx3060"));
  EXPECT_EQ(WEXITSTATUS(std::system((fit + "--json " + program + "> out 2> err").c_str())), 0) << content("err");
  const auto figures = nlohmann::json::parse(content("out"), nullptr, false);
  ASSERT_TRUE(figures.is_object()) << content("out");
  EXPECT_EQ(figures["smallest"]["capacity"], "rtx4090");
  for (const auto& row : figures["results"]) {
    EXPECT_EQ(row["fits"], row["capacity_bytes"].get<std::uint64_t>() >= (std::uint64_t{24080} << 20)) << row;
  }
}

TEST_F(Simulate, FitSaysThatNoCardHoldsIt) {
  const std::string fit = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " fit -- " GPUMEM_TEST_PROGRAM;
  EXPECT_EQ(WEXITSTATUS(std::system((fit + " take=190000 > out 2> err").c_str())), 3) << content("err");
  EXPECT_THAT(content("out"), HasSubstr(" fits none of these cards: 185.55 GiB were live at the peak, and b200 has "));
  EXPECT_EQ(WEXITSTATUS(std::system((fit + " exit=7 > out 2> err").c_str())), 7);
  EXPECT_EQ(content("out"), "");
}

/// The output of `predict` for 1500 MiB of device memory on a card of 2 GiB, whose settings are then applied to it.
TEST_F(Simulate, PrintsSettingsWithWhichTheProgramFits) {
  const std::string in = "cd " + folder_ + " && timeout 60 ";
  const std::string program = " -- " GPUMEM_TEST_PROGRAM " take=700 take=700 take=100 ";
  const std::string trace = "--trace run.csv.gz";
  const std::string predict = in + GPUMEM_PROGRAM " predict --capacity 2GiB " + trace + program + "> out 2> err";
  EXPECT_EQ(WEXITSTATUS(std::system(predict.c_str())), 0) << content("err");
  const std::string plan = "gpumem plan run.csv.gz -o run.plan";
  EXPECT_THAT(content("out"), HasSubstr("planned follows a plan of this run: " + plan + "\n"));
  const std::string made = GPUMEM_PROGRAM + plan.substr(plan.find(' '));
  EXPECT_EQ(std::system((in + made + " > plan.out 2>&1").c_str()), 0) << content("plan.out");
  std::istringstream lines{content("out")};
  int applied = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto at = line.find("GPUMEM_");
    if (at == std::string::npos) continue;
    ++applied;
    const outcome got = simulate("--card 2GiB -- " GPUMEM_PROGRAM " run" + program, line.substr(at));
    EXPECT_EQ(got.exit_status, 0) << line << "\n" << got.out << got.err;
    EXPECT_TRUE(got.figures["oom"].empty()) << line;
  }
  EXPECT_GT(applied, 8) << content("out");
  const outcome options = simulate("--card 2GiB --policy growth --limit 1598MiB" + program, "GPUMEM_LIMIT_SCOPE=pool");
  EXPECT_EQ(options.exit_status, 0) << options.err;
}

TEST_F(Simulate, PredictsForCapacitiesThatTheContextFills) {
  const std::string predict = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --capacity 24GiB ";
  const std::string less = "--capacity 100MiB --capacity 450MiB --capacity 451MiB ";
  const std::string program = "-- " GPUMEM_TEST_PROGRAM " take=1 > out 2> err";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + less + program).c_str())), 0) << content("err");
  EXPECT_THAT(content("out"), HasSubstr("24GiB   growth "));
  for (const char* each : {"100MiB", "450MiB", "451MiB"}) {
    EXPECT_THAT(content("out"), HasSubstr(std::string{each} + "  every one  "));
  }
  const std::string alone = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --capacity 100MiB ";
  EXPECT_EQ(WEXITSTATUS(std::system((alone + program).c_str())), 3) << content("err");
}

constexpr const char* two_processes = R"(import subprocess, sys, torch
if len(sys.argv) > 1:
    torch.take(int(sys.argv[1]))
else:  # the larger one ends first
    sys.exit(any(subprocess.call([sys.executable, __file__, mib]) for mib in ("200", "100")))
)";

TEST_F(Simulate, TakesTheTraceOfTheLargestOfSeveralProcesses) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch;
  std::ofstream{folder_ + "/two.py"} << two_processes;
  const outcome got = simulate("--trace t.csv -- python3 two.py");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(content("t.csv"), HasSubstr(",209715200,"));
  EXPECT_THAT(content("t.csv"), ::testing::Not(HasSubstr(",104857600,")));
  EXPECT_THAT(got.err, HasSubstr("2 processes took memory of the card; the trace is of process "));
  int others = 0;
  for (const auto& entry : fs::directory_iterator{folder_}) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("t.pid", 0) != 0) continue;
    ++others;
    EXPECT_THAT(content(name), HasSubstr(",104857600,"));
    EXPECT_THAT(got.err, HasSubstr("(100.00 MiB, in " + entry.path().string() + ")"));
  }
  EXPECT_EQ(others, 1);
  const outcome one = simulate("--trace one.csv -- python3 two.py 30");
  EXPECT_THAT(content("one.csv"), HasSubstr(",31457280,"));
  EXPECT_TRUE(one.figures["warnings"].empty()) << one.figures["warnings"];

  const std::string predict = "cd " + folder_ + " && env TMPDIR=" + folder_ +
                              " timeout 60 " GPUMEM_PROGRAM " predict --context 0 --capacity 1GiB --json -- ";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + "python3 two.py > out 2> err").c_str())), 0) << content("err");
  const auto figures = nlohmann::json::parse(content("out"), nullptr, false);
  EXPECT_EQ(figures["peak_live_bytes"], 200 * mib);
  EXPECT_EQ(figures["processes"], 2);
  ASSERT_EQ(figures["warnings"].size(), 1U) << figures;
  EXPECT_THAT(content("err"), HasSubstr("the largest peak (200.00 MiB). Not in it: process "));
  for (const auto& entry : fs::directory_iterator{folder_}) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(StartsWith("gpumem-"))) << "predict removes its files";
  }
}

TEST_F(Simulate, PredictsWithTheMemoryThatPyTorchDidNotTake) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch;
  std::ofstream{folder_ + "/outside.py"} << "import torch\ntorch.take(200)\ntorch.take_outside(2000)\n";
  const std::string predict = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --context 0 ";
  const std::string sizes = "--capacity 2GiB --capacity 3GiB --trace t.csv --json -- python3 outside.py > out 2> err";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + sizes).c_str())), 0) << content("err");
  auto figures = nlohmann::json::parse(content("out"), nullptr, false);
  EXPECT_EQ(figures["outside_bytes"], 2000 * mib);
  EXPECT_THAT(content("err"),
              HasSubstr("1.95 GiB were taken outside PyTorch's allocator (the peak of all device memory"));
  for (const auto& row : figures["results"]) EXPECT_EQ(row["fits"], row["capacity"] == "3GiB") << row;
  EXPECT_EQ(row_of(figures, "3GiB", "native")["peak_reserved_bytes"], 2200 * mib);
  EXPECT_EQ(row_of(figures, "3GiB", "caching")["peak_reserved_bytes"], 2200 * mib);
  EXPECT_FALSE(row_of(figures, "3GiB", "expandable").contains("by")) << "PyTorch does not find gpumem's package";
  EXPECT_EQ(row_of(figures, "3GiB", "growth")["settings"], "GPUMEM_TORCH=1 GPUMEM_POLICY=growth GPUMEM_LIMIT=1072MiB");
  EXPECT_THAT(content("t.csv"), HasSubstr(",209715200,"));
}

TEST_F(Simulate, WarnsThatPyTorchsRecordIsIncomplete) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch;
  std::ofstream{folder_ + "/limits.py"} << "import torch\ntorch.take(200)\ntorch.take(30)\ntorch.forget()\n";
  std::ofstream{folder_ + "/whole.py"} << "import torch\ntorch.take(200)\ntorch.take(30)\n";
  const std::string predict = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --capacity 2GiB -- python3 ";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + "limits.py > out 2> err").c_str())), 0) << content("err");
  EXPECT_THAT(content("err"),
              HasSubstr("incomplete record: PyTorch's tensors peaked at 230.00 MiB, its record of them at "
                        "30.00 MiB"));
  EXPECT_EQ(WEXITSTATUS(std::system((predict + "whole.py > out 2> err").c_str())), 0) << content("err");
  EXPECT_EQ(content("err"), "");
}

TEST_F(Simulate, SaysThatAProcessLeftNoTrace) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch;
  std::ofstream{folder_ + "/two.py"} << two_processes;
  const outcome got =
      simulate("--trace t.csv -- sh -c 'python3 two.py 50 && " GPUMEM_TEST_PROGRAM " take=300 && exit 5'");
  EXPECT_EQ(got.exit_status, 5) << got.err;
  EXPECT_THAT(content("t.csv"), HasSubstr(",52428800,"));
  EXPECT_THAT(got.err, HasSubstr("the largest peak of those with a record (50.00 MiB)"));
  EXPECT_THAT(got.err, HasSubstr("(300.00 MiB, no record)"));
}

TEST_F(Simulate, RefusesOneRecordOfSeveralProcessesThatAPolicyServes) {
  const std::string two = "-- sh -c '" GPUMEM_TEST_PROGRAM " take=5 && " GPUMEM_TEST_PROGRAM " take=3'";
  const outcome got = simulate("--policy growth --trace t.csv " + two);
  EXPECT_EQ(got.exit_status, 1) << got.err;
  EXPECT_THAT(got.err, HasSubstr("2 processes took memory of the card, and gpumem records one"));
  const std::string predict = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --capacity 1GiB " + two;
  EXPECT_EQ(WEXITSTATUS(std::system((predict + " > out 2> err").c_str())), 1) << content("out");
  EXPECT_THAT(content("err"), HasSubstr("2 processes took memory of the card, and gpumem records one"));
}

TEST_F(Simulate, RefusesFilesThatCannotBeWrittenBeforeTheProgramRuns) {
  fs::create_directory(folder_ + "/folder");
  ASSERT_EQ(::mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  const struct {
    const char* words;
    const char* reason;
  } cases[] = {
      {"--trace no/t.csv", "--trace no/t.csv: cannot be written: No such file or directory; expected a file in a"},
      {"--trace folder", "--trace folder: cannot be written: Is a directory; expected a file in a"},
      {"--trace pipe", "--trace pipe: cannot be replaced; expected a regular file"},
      {"--report no/t.html", "--report no/t.html: cannot be written: No such file or directory; expected"},
      {"--json no/t.json", "--json no/t.json: cannot be written: No such file or directory; expected"}};
  for (const auto& each : cases) {
    const std::string command = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " simulate " + each.words +
                                " -- sh -c 'echo ran; exit 7' > out 2> err";
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 2) << each.words;
    EXPECT_THAT(content("err"), HasSubstr(each.reason)) << each.words;
    EXPECT_EQ(content("out"), "") << each.words;
  }
  const std::string predict = "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --trace ";
  const std::string ran = " -- sh -c 'echo ran' > out 2> err";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + "folder" + ran).c_str())), 2);
  EXPECT_THAT(content("err"), StartsWith("gpumem: --trace folder: cannot be written: Is a directory"));
  EXPECT_TRUE(fs::is_fifo(folder_ + "/pipe"));
  std::ofstream{folder_ + "/kept.csv"} << "of before";
  EXPECT_EQ(simulate("--trace kept.csv --report no/t.html -- true").exit_status, 2);
  EXPECT_EQ(content("kept.csv"), "of before");
  EXPECT_EQ(WEXITSTATUS(std::system((predict + "kept.csv --settle soon" + ran).c_str())), 2);
  EXPECT_EQ(content("kept.csv"), "of before");
  EXPECT_FALSE(fs::exists(folder_ + "/figures.json")) << "nothing is left of the check";
}

TEST_F(Simulate, KeepsPyTorchsFiguresWhereItsTraceCannotBeWritten) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch;
  std::ofstream{folder_ + "/loses.py"} << "import os, torch\ntorch.take(30)\nos.rmdir('folder')\n";
  fs::create_directory(folder_ + "/folder");
  const outcome got = simulate("--trace folder/t.csv -- python3 loses.py");
  EXPECT_EQ(got.exit_status, 1) << got.err;
  EXPECT_THAT(got.err, HasSubstr("no trace was recorded: FileNotFoundError: "));
  EXPECT_EQ(got.figures["cards"][0]["peak_live_by"], "torch");
}

/// In PyTorch's record a refused request has no address; the hooks must accept that.
TEST_F(Simulate, TakesTheTraceOfAProgramThatRanOutOfMemory) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch;
  std::ofstream{folder_ + "/fills.py"} << R"(import torch
torch.take(30)
torch._entries.append({"action": "oom", "device_free": 5, "size": 7, "stream": 0, "time_us": 9})
torch.take(20)
)";
  const outcome got = simulate("--trace t.csv -- python3 fills.py");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(content("t.csv"), HasSubstr(",31457280,"));
  EXPECT_THAT(content("t.csv"), HasSubstr(",20971520,"));
  // An invalid entry: no trace is written, not even a part.
  std::ofstream{folder_ + "/fills.py", std::ios::app} << "torch._entries.append({'action': 'alloc'})\n";
  const outcome broken = simulate("--trace t.csv -- python3 fills.py");
  EXPECT_EQ(broken.exit_status, 1);
  EXPECT_THAT(broken.err, HasSubstr("no trace was recorded: KeyError: 'addr'"));
  for (const auto& entry : fs::directory_iterator{folder_}) EXPECT_NE(entry.path().extension(), ".csv");
}

TEST_F(Simulate, LeavesAnAllocatorAloneThatRecordsNothing) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch << R"(
def refuse(**_): raise RuntimeError("does not yet support recordHistory")
memory._record_memory_history = refuse
if __import__("os").environ["BACKEND"] != "native":
    memory.get_allocator_backend = lambda: "cudaMallocAsync"
)";
  std::ofstream{folder_ + "/takes.py"} << "import torch\ntorch.take(30)\nprint('ran')\n";
  const outcome other = simulate("--trace t.csv -- python3 takes.py", "BACKEND=cudaMallocAsync");
  EXPECT_EQ(other.out, "ran\n") << other.err;
  EXPECT_EQ(other.exit_status, 1) << "no trace";
  EXPECT_THAT(other.err, HasSubstr("its allocator was cudaMallocAsync; expected native"));
  EXPECT_EQ(other.figures["cards"][0]["peak_live_by"], "torch");
  std::ofstream{folder_ + "/torch.py", std::ios::app} << "memory._snapshot = lambda: {'device_traces': [[]]}\n";
  const outcome native = simulate("--trace t.csv -- python3 takes.py", "BACKEND=native");
  EXPECT_EQ(native.out, "ran\n") << native.err;
  EXPECT_THAT(native.err, HasSubstr("PyTorch does not record its allocations: RuntimeError: does not yet support"));
  const std::string predict = "cd " + folder_ +
                              " && BACKEND=cudaMallocAsync timeout 60 " GPUMEM_PROGRAM
                              " predict --context 0 --capacity 1GiB --json -- python3 takes.py > out 2> err";
  EXPECT_EQ(WEXITSTATUS(std::system(predict.c_str())), 0) << content("err");
  EXPECT_EQ(nlohmann::json::parse(content("out"), nullptr, false)["peak_live_bytes"], 30 * mib);
}

/// Like PyTorch's, the fake's record is a list that the latest call limits and clears.
TEST_F(Simulate, KeepsTheRecordWhereTheProgramRecordsItself) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch << R"(
asked = []
def change(enabled, context, stacks, max_entries, clear, *others):
    asked.append((enabled, context, max_entries, clear, *others))
    if enabled is None or clear: _entries.clear()
    del _entries[:-max_entries]
_C._cuda_record_memory_history = change
_C._cuda_memorySnapshot = lambda *_: {"device_traces": [list(_entries)]}
memory._snapshot = lambda: _C._cuda_memorySnapshot(None)
)";
  std::ofstream{folder_ + "/records.py"} << R"(import sys, torch
torch.take(10)
def own(): return [each["size"] >> 20 for each in torch.memory._snapshot()["device_traces"][0]]
print(own())
torch._C._cuda_record_memory_history("all", "alloc", "all", 3, True, False, False, [])
torch.take(20)
print(own())
torch.take(30); torch.take(31); torch.take(32)
print(own())
torch._C._cuda_record_memory_history("all", "alloc", "all", 9, False, False, False, ["alloc"])
print(own())
torch._C._cuda_record_memory_history(None, "all", "all", 7, False, False, False, [])
torch.take(40)
print(own())
first, _, last = torch.asked
assert first == ("all", "alloc", sys.maxsize, False, False, False, []), first
assert last == ("all", None, sys.maxsize, False, False, False, []), last
)";
  const outcome got = simulate("--trace t.csv -- python3 records.py");
  EXPECT_EQ(got.exit_status, 0) << got.out << got.err;
  EXPECT_EQ(got.out, "[]\n[20]\n[30, 31, 32]\n[]\n[]\n") << "what the program asked for";
  for (const char* size : {",10485760,", ",20971520,", ",31457280,", ",41943040,"}) {
    EXPECT_THAT(content("t.csv"), HasSubstr(size));
  }
  // Without a trace the program keeps its own record.
  std::ofstream{folder_ + "/plain.py"} << "import torch\ntorch.take(10)\n"
                                          "torch._C._cuda_record_memory_history(None, None, 'all', 7, False)\n"
                                          "torch.take(20)\nprint(len(torch._entries))\n";
  EXPECT_EQ(simulate("-- python3 plain.py").out, "1\n");
}

TEST_F(Simulate, RefusesAContextLargerThanTheCard) {
  EXPECT_EQ(simulate("--card 64MiB -- true").exit_status, 2);
  EXPECT_THAT(content("err"), HasSubstr("--context 450MiB: larger than the card (64.00 MiB); expected"));
  EXPECT_EQ(simulate("--context 200GiB -- true").exit_status, 2);
  EXPECT_EQ(program("memory", "--card 64MiB --context 64MiB").out, "0 of 64 MiB are free\n");
  const std::string predict = "timeout 60 " GPUMEM_PROGRAM " predict --context 2TiB -- true 2> " + folder_ + "/err";
  EXPECT_EQ(WEXITSTATUS(std::system(predict.c_str())), 2);
  EXPECT_THAT(content("err"), HasSubstr("--context 2TiB: larger than the card (1.00 TiB)"));
}

TEST_F(Simulate, TellsOfAContextThatHasNoRoomOnASharedCard) {
  const std::string options = "--card 1GiB --context 600MiB --shared full-" + std::to_string(::getpid());
  const outcome got =
      simulate(options + " -- sh -c '" GPUMEM_TEST_PROGRAM " take=1 make=taken await=seen & " GPUMEM_TEST_PROGRAM
                         " await=taken take=1; echo $? > seen; wait'");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_EQ(content("seen"), "9\n");
  ASSERT_EQ(got.figures["oom"].size(), 1U) << got.err;
  EXPECT_EQ(got.figures["oom"][0]["function"], "cuDevicePrimaryCtxRetain");
  EXPECT_EQ(got.figures["oom"][0]["requested_bytes"], 600 * mib);
  EXPECT_EQ(got.figures["oom"][0]["others_bytes"], 602 * mib) << "the driver gives whole pages of 2 MiB";
}

TEST_F(Simulate, PredictsFromAProgramThatIsEndedOnceItsFiguresSettle) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/torch.py"} << stand_in_torch;
  std::ofstream{folder_ + "/waits.py"} << "import torch\ntorch.take(70)\ntorch.read_forever()\n";
  const std::string predict =
      "cd " + folder_ + " && timeout 60 " GPUMEM_PROGRAM " predict --context 0 --json --settle ";
  EXPECT_EQ(WEXITSTATUS(std::system((predict + "2s -- python3 waits.py > out 2> err").c_str())), 0) << content("err");
  EXPECT_EQ(nlohmann::json::parse(content("out"), nullptr, false)["peak_live_bytes"], 70 * mib);
  EXPECT_THAT(content("err"), HasSubstr("ended: for 2 s the program took no more memory"));
  EXPECT_EQ(WEXITSTATUS(std::system((predict + "soon -- true > out 2> err").c_str())), 2);
  EXPECT_THAT(content("err"), HasSubstr("--settle soon: expected a time such as 30s, 10m or 2h"));
}

/// Counts the signals that the program gets: sent to gpumem alone, and by a terminal to both.
TEST_F(Simulate, PassesSignalsOnOnce) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/counts.py"} << R"(import signal, time
seen = []
for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(each, lambda number, _: seen.append(signal.Signals(number).name))
open("ready", "w").close()
end = time.monotonic() + 20
while not seen and time.monotonic() < end:
    time.sleep(0.02)
time.sleep(1)
open("seen", "a").write(",".join(seen) + "\n")
)";
  std::ofstream{folder_ + "/sends.py"} << R"(import os, pty, signal, sys, time
words = [sys.argv[1], "simulate", "--quiet", "--", sys.executable, "counts.py"]
for how in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, None):
    if os.path.exists("ready"):
        os.unlink("ready")
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    while not os.path.exists("ready"):
        time.sleep(0.02)
    os.write(terminal, b"\x03") if how is None else os.kill(pid, how)
    os.waitpid(pid, 0)
)";
  const std::string command = "cd " + folder_ + " && timeout 60 python3 sends.py " GPUMEM_PROGRAM " 2> err";
  EXPECT_EQ(std::system(command.c_str()), 0) << content("err");
  EXPECT_EQ(content("seen"), "SIGINT\nSIGHUP\nSIGTERM\nSIGINT\n");
}

TEST_F(Simulate, PutsTheLibrariesOfCuda12BehindThoseOf13) {
  const std::string folder = fs::path{GPUMEM_PROGRAM}.parent_path().parent_path() / "simcuda";
  if (!fs::exists(folder + "/cuda12/libcudart.so.12")) GTEST_SKIP() << "built without GPUMEM_CUDA12";
  const outcome got = simulate("-- sh -c 'echo $LD_PRELOAD'");
  EXPECT_NE(got.out.find("/libcudart.so.13:"), std::string::npos) << got.out;
  EXPECT_LT(got.out.find("/libcudart.so.13:"), got.out.find("/cuda12/libcudart.so.12")) << got.out;
  EXPECT_EQ(program("library=libcublas.so.12:cublasCreate_v2").out, "libcublas.so.12:cublasCreate_v2 = 0\n");
}

/// The output of scripts/validate_simulation: the differences between the peaks and sizes of two snapshots.
TEST_F(Simulate, ComparesARecordingWithASimulatedRun) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/make.py"} << R"(import pickle
def write(path, sizes, before):
    events = [{"action": "segment_alloc", "addr": 0, "size": 20 << 20}]
    events += [{"action": "alloc", "addr": i, "size": size} for i, size in enumerate(sizes)]
    events += [{"action": "free_completed", "addr": 0, "size": sizes[0]}]
    blocks = [{"size": size, "requested_size": size, "state": "active_allocated"} for size in sizes[1:] + [before]]
    segments = [{"device": 0, "total_size": 20 << 20, "blocks": blocks}]
    pickle.dump({"device_traces": [events], "segments": segments}, open(path, "wb"))
write("real.pickle", [1000, 2000, 3000], 500)
write("near.pickle", [1000, 2000, 3001], 500)
)";
  const auto compare = [&](const std::string& with) {
    return std::system(("cd " + folder_ + " && python3 make.py && python3 '" + fs::current_path().string() +
                        "/scripts/validate_simulation' --row real.pickle --snapshot " + with + " > out 2> err")
                           .c_str());
  };
  EXPECT_EQ(compare("real.pickle"), 0) << content("err");
  EXPECT_EQ(content("out"), "| real.pickle | 6500 | 6500 | 0.0000 % | 20971520 | 20971520 | 0.0000 % | 3 | 0 | 0 |\n");
  EXPECT_EQ(WEXITSTATUS(compare("near.pickle")), 1);
  EXPECT_THAT(content("out"), HasSubstr("| 6500 | 6501 | 0.0154 % |"));
  EXPECT_THAT(content("out"), HasSubstr("| 3 | 1 | 1 |"));
}

TEST_F(Simulate, WritesPyTorchsRecordPlainOrCompressed) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/write.py"} << R"(import gzip, sys
sys.path.insert(0, sys.argv[1])
from gpumem_simulated_torch import write_rows
entries = [{"action": "alloc", "addr": 16, "size": 7, "stream": 0}, {"action": "free_requested", "addr": 16, "stream": 0}]
assert write_rows(entries, "plain.csv") == write_rows(entries, "packed.csv.gz") == 2
assert gzip.open("packed.csv.gz", "rt").read() == open("plain.csv").read()
)";
  const std::string command =
      "cd " + folder_ + " && python3 write.py '" + fs::current_path().string() + "/simcuda/python' 2> err";
  EXPECT_EQ(std::system(command.c_str()), 0) << content("err");
  EXPECT_THAT(content("plain.csv"), HasSubstr("1,00:00:00:000000,allocate,0x10,7,0\n"));
}

TEST_F(Simulate, RunsTheUsersOwnSitecustomizeOfPython) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  std::ofstream{folder_ + "/sitecustomize.py"} << "print('the user\\'s own')\n";
  const outcome got = simulate("-- python3 -c 'print(1)'", "PYTHONPATH=" + folder_);
  EXPECT_EQ(got.exit_status, 0);
  EXPECT_EQ(got.out, "the user's own\n1\n") << got.err;
}

}  // namespace
}  // namespace gpumem::cli
