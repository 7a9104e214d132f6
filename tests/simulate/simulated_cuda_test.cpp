// The folder of the simulated CUDA as a wheel has it, `gpumem simulate --doctor`, what frameworks get without settings,
// and what a killed run leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "temporary_folder.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class SimulatedCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  }

  std::string content(const std::string& name) const {
    std::ifstream file{folder_ + "/" + name};
    return {std::istreambuf_iterator<char>{file}, {}};
  }
  int run(const std::string& program, const std::string& words, const std::string& environment = "") const {
    const std::string command = "cd " + folder_ + " && env -i PATH=\"$PATH\" HOME=/ TMPDIR=" + folder_ + " " +
                                environment + " timeout 60 " + program + " " + words + " > out 2> err";
    return WEXITSTATUS(std::system(command.c_str()));
  }

  /// A package as a wheel installs it: files without symbolic links. Returns its program.
  std::string install_package() const {
    const fs::path built = fs::path{GPUMEM_PROGRAM}.parent_path().parent_path() / "simcuda";
    const fs::path package = folder_ + "/package";
    fs::create_directories(package / "bin");
    fs::copy_file(GPUMEM_PROGRAM, package / "bin" / "gpumem");
    std::ofstream{package / "__init__.py"}.close();
    for (const char* part : {"", "python", "values", "cuda12"}) {
      fs::create_directories(package / "simcuda" / part);
      std::error_code none;
      for (const auto& entry : fs::directory_iterator{built / part, none}) {
        const std::string name = entry.path().filename().string();
        const bool is_library = name.rfind("lib", 0) == 0 && name.find(".so.") != std::string::npos;
        const bool is_source = name.ends_with(".py") || name.ends_with(".cpp") || name.ends_with(".hpp");
        if (entry.is_symlink() || !(is_library || (is_source && *part != '\0'))) continue;
        fs::copy_file(entry.path(), package / "simcuda" / part / name);
      }
    }
    return package / "bin" / "gpumem";
  }

  temporary_folder temporary_;
  std::string folder_ = temporary_.path();
};

TEST_F(SimulatedCuda, ServesNamesWithoutAVersionFromAPackage) {
  const std::string program = install_package();
  std::ofstream{folder_ + "/plain.py"} << R"(import ctypes
ctypes.CDLL("libcuda.so")
print(len({line.split()[-1] for line in open("/proc/self/maps") if "/libcuda.so" in line}))
)";
  EXPECT_EQ(run(program, "simulate --quiet -- python3 plain.py"), 0) << content("err");
  EXPECT_EQ(content("out"), "1\n") << "two files of one library are two drivers";
}

TEST_F(SimulatedCuda, RefusesAnIncompletePackage) {
  const std::string program = install_package();
  fs::remove(folder_ + "/package/simcuda/python/gpumem_simulated_torch.py");
  fs::remove(folder_ + "/package/simcuda/libcublas.so.13");
  EXPECT_EQ(run(program, "simulate -- true"), 1);
  EXPECT_THAT(
      content("err"),
      HasSubstr("is incomplete, without libcublas.so.13, python/gpumem_simulated_torch.py: install the whole wheel"));
  EXPECT_EQ(run(program, "simulate --doctor"), 1);
  EXPECT_THAT(content("out"), HasSubstr("MISSING: libcublas.so.13, python/gpumem_simulated_torch.py of the simulated"));

  // The same files installed by CMake, and in a build tree.
  fs::remove(folder_ + "/package/__init__.py");
  EXPECT_EQ(run(program, "simulate -- true"), 1);
  EXPECT_THAT(content("err"), HasSubstr("--component simcuda --prefix " + folder_ + "/package)"));
  std::ofstream{folder_ + "/package/CMakeCache.txt"}.close();
  EXPECT_EQ(run(program, "simulate -- true"), 1);
  EXPECT_THAT(content("err"), HasSubstr("(cmake " + folder_ + "/package && cmake --build " + folder_ +
                                        "/package --target gpumem_simulator)"));
}

TEST_F(SimulatedCuda, NeedsNoCompilerForTheTorchOfAPackage) {
  const std::string program = install_package();
  const std::string told = folder_ + "/modules/torch";
  fs::create_directories(told);
  std::ofstream{told + "/__init__.py"} << "raise ImportError('the doctor imports no torch')\n";
  std::ofstream{told + "/version.py"} << "__version__ = '2.15.0'\ngit_version = 'abc'\ncuda = '13.0'\n";
  const auto doctor = [&] {
    return run(program, "simulate --doctor", "CXX=/none/such PYTHONPATH=" + folder_ + "/modules");
  };
  EXPECT_EQ(doctor(), 1);
  EXPECT_THAT(content("out"), HasSubstr("MISSING: values of small operations"));
  fs::create_directories(folder_ + "/package/simcuda/prebuilt");
  std::ofstream{folder_ + "/package/simcuda/prebuilt/values-abc-torch2.15.0.so"}.close();
  EXPECT_EQ(doctor(), 0) << content("out");
  EXPECT_THAT(content("out"), HasSubstr("ok:      values of small operations: prebuilt for this torch"));
}

TEST_F(SimulatedCuda, DoctorPrintsTheCommands) {
  EXPECT_EQ(run(GPUMEM_PROGRAM, "simulate --doctor"), 0) << content("out");
  EXPECT_THAT(content("out"), HasSubstr("ok:      simulated CUDA"));
  EXPECT_THAT(content("out"), HasSubstr("note:    no torch in this Python"));

  const auto torch = [this](const std::string& cuda, const std::string& others = "") {
    fs::create_directories(folder_ + "/modules/torch");
    std::ofstream{folder_ + "/modules/torch/__init__.py"} << "raise ImportError('the doctor imports no torch')\n";
    std::ofstream{folder_ + "/modules/torch/version.py"}
        << "__version__ = '2.15.0'\ngit_version = 'none'\ncuda = " << cuda << "\nhip = None\n";
    return run(GPUMEM_PROGRAM, "simulate --doctor -- python3 train.py", "PYTHONPATH=" + folder_ + "/modules " + others);
  };
  EXPECT_EQ(torch("'13.0'", "CXX=true"), 0) << content("out");
  EXPECT_THAT(content("out"), HasSubstr("ok:      torch 2.15.0 for CUDA 13.0"));
  EXPECT_EQ(torch("'13.0'", "CXX=/none/such"), 1);
  EXPECT_THAT(content("out"),
              HasSubstr("MISSING: values of small operations (a loop that ends at a token): CXX=/none/such "));
  EXPECT_EQ(torch("None"), 1);
  EXPECT_THAT(content("out"), HasSubstr("MISSING: a torch for CUDA: torch 2.15.0 is built for the CPU; install"));
  EXPECT_EQ(torch("'11.8'"), 1);
  EXPECT_THAT(content("out"), HasSubstr("MISSING: CUDA 11.8 of torch 2.15.0: simulated here is "));
}

/// Its memory is the runtime's; `is_initialized` is false in a child that inherited it, as PyTorch's is.
constexpr const char* torch_in_a_child = R"(import ctypes, types
__version__, _C, _bytes = "0+standin", types.SimpleNamespace(), []
def take(mib):
    assert ctypes.CDLL("libcudart.so.13").cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(mib << 20)) == 0
    _bytes.append(mib << 20)
cuda = types.SimpleNamespace(is_initialized=lambda: bool(_bytes), device_count=lambda: 1, _lazy_call=lambda f: f(),
    memory_stats=lambda _: {"allocated_bytes.all.peak": sum(_bytes)},
    memory=types.SimpleNamespace(get_allocator_backend=lambda: "native", _record_memory_history=lambda **_: None))
)";

TEST_F(SimulatedCuda, KeepsPyTorchsFiguresOfAForkedChild) {
  std::ofstream{folder_ + "/torch.py"} << torch_in_a_child;
  std::ofstream{folder_ + "/serve.py"} << R"(import multiprocessing, torch
engine = multiprocessing.get_context("fork").Process(target=torch.take, args=(200,))
engine.start()
engine.join()
)";
  EXPECT_EQ(run(GPUMEM_PROGRAM, "simulate --json figures.json -- python3 serve.py"), 0) << content("err");
  const auto figures = nlohmann::json::parse(content("figures.json"), nullptr, false);
  ASSERT_EQ(figures["cards"].size(), 1U) << figures;
  EXPECT_EQ(figures["cards"][0]["peak_live_by"], "torch");
  EXPECT_EQ(figures["cards"][0]["torch"]["peak_allocated_bytes"], std::uint64_t{200} << 20);
}

/// vLLM asks its engine to end, and kills it at once.
TEST_F(SimulatedCuda, KeepsPyTorchsFiguresOfAChildThatIsKilledAtItsEnd) {
  std::ofstream{folder_ + "/torch.py"} << torch_in_a_child;
  std::ofstream{folder_ + "/serve.py"} << R"(import multiprocessing, signal, sys, time, torch
def serve(ready):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    torch.take(200)
    ready.set()
    try:
        time.sleep(60)
    finally:
        time.sleep(0.5)  # frees what it holds
forked = multiprocessing.get_context("fork")
ready = forked.Event()
engine = forked.Process(target=serve, args=(ready,))
engine.start()
assert ready.wait(60)
engine.terminate()
engine.kill()
engine.join()
)";
  EXPECT_EQ(run(GPUMEM_PROGRAM, "simulate --json figures.json -- python3 serve.py"), 0) << content("err");
  const auto figures = nlohmann::json::parse(content("figures.json"), nullptr, false);
  ASSERT_EQ(figures["cards"].size(), 1U) << figures;
  EXPECT_EQ(figures["cards"][0]["peak_live_by"], "torch") << content("err");
}

TEST_F(SimulatedCuda, LeavesNothingWhereItIsKilled) {
  std::ofstream{folder_ + "/waits.py"} << R"(import ctypes, os, time
ctypes.CDLL("libcuda.so.1").cuInit(0)
with open("pid.part", "w") as out: out.write(str(os.getpid()))
os.rename("pid.part", "pid")
time.sleep(600)
)";
  std::ofstream{folder_ + "/kills.py"} << R"(import glob, os, signal, subprocess, sys, time
run = subprocess.Popen([sys.argv[1], "simulate", "--", "sh", "-c", "python3 waits.py; true"])
def wait_until(done):
    for _ in range(1200):
        if done(): return
        time.sleep(0.05)
    sys.exit(f"never: {done.__name__}")
def program_runs(): return os.path.exists("pid")
def program_is_gone():
    try: state = open(f"/proc/{open('pid').read()}/stat").read().rsplit(') ', 1)[1].split()[0]
    except OSError: return True
    return state == "Z"
def records_are_gone(): return not glob.glob("gpumem-*")
wait_until(program_runs)
assert not records_are_gone()
os.kill(run.pid, signal.SIGKILL)
wait_until(program_is_gone)
wait_until(records_are_gone)
)";
  EXPECT_EQ(run("python3", "kills.py " GPUMEM_PROGRAM), 0) << content("err");
}

TEST_F(SimulatedCuda, LetsJaxFindItsCardsAndKeepsTheUsersFlags) {
  fs::create_directories(folder_ + "/jax/_src");
  std::ofstream{folder_ + "/jax/__init__.py"};
  std::ofstream{folder_ + "/jax/_src/__init__.py"};
  std::ofstream{folder_ + "/jax/_src/hardware_utils.py"} << "def has_visible_nvidia_gpu(): return False\n";
  std::ofstream{folder_ + "/asks.py"} << R"(import os
before = os.environ.get("XLA_FLAGS")
from jax._src import hardware_utils
print(hardware_utils.has_visible_nvidia_gpu(), before, os.environ["XLA_FLAGS"])
)";
  EXPECT_EQ(run(GPUMEM_PROGRAM, "simulate --quiet -- python3 asks.py"), 0) << content("err");
  EXPECT_EQ(content("out"), "True None --xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer=\n");
  const std::string own = "XLA_FLAGS=--xla_gpu_autotune_level=4";
  EXPECT_EQ(run(GPUMEM_PROGRAM, "simulate --quiet -- python3 asks.py", own), 0) << content("err");
  EXPECT_EQ(content("out"),
            "True --xla_gpu_autotune_level=4 --xla_gpu_autotune_level=4 --xla_gpu_enable_command_buffer=\n");
  EXPECT_THAT(content("err"), HasSubstr("If the program fails, set --xla_gpu_autotune_level=0"));

  // Flags that the program sets after it has imported JAX.
  std::ofstream{folder_ + "/jax/_src/xla_bridge.py"}
      << "import os\ndef _init_backend(name): return name, os.environ['XLA_FLAGS']\n";
  std::ofstream{folder_ + "/sets.py"} << R"(import os
from jax._src import xla_bridge
os.environ["XLA_FLAGS"] = "--own"
print(*xla_bridge._init_backend("cuda"))
)";
  EXPECT_EQ(run(GPUMEM_PROGRAM, "simulate --quiet -- python3 sets.py"), 0) << content("err");
  EXPECT_EQ(content("out"), "cuda --own --xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer=\n");
}

}  // namespace
}  // namespace gpumem::cli
