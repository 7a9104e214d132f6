// `gpumem_bench claims --with jax`, whole, on a stand-in for JAX that takes memory as JAX does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "temporary_folder.hpp"

namespace gpumem::bench {
namespace {

namespace fs = std::filesystem;

/// A pool of the fraction at the first array, else each array by itself; three handles of cuBLAS for a product.
constexpr char fake_jax[] = R"(
import contextlib, ctypes, os, types
cuda, cublas = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libcublas.so.13")
__version__ = "0.0"
pool = []  # what of it is free

def take(size):
    where = ctypes.c_void_p()
    if cuda.cudaMalloc(ctypes.byref(where), ctypes.c_size_t(size)) != 0:
        raise MemoryError(f"{size} bytes")

class Array:
    def __init__(self, shape):
        size = 4
        for each in shape:
            size *= each
        fraction = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
        if fraction is None:
            return take(size)
        if not pool:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            cuda.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
            pool.append(int(float(fraction) * total.value))
            take(pool[0])
        if pool[0] < size:
            raise MemoryError(f"{size} of {pool[0]} bytes")
        pool[0] -= size
    def block_until_ready(self):
        return self
    def __matmul__(self, other):
        for _ in range(3):
            handle = ctypes.c_void_p()
            assert cublas.cublasCreate_v2(ctypes.byref(handle)) == 0
        return self

numpy = types.SimpleNamespace(zeros=Array)
devices = lambda: [types.SimpleNamespace(platform="gpu")]
default_device = lambda card: contextlib.nullcontext()
)";

TEST(FrameworkClaims, APoolIsMeasuredWithoutTheHandlesOfLibrariesHoweverManyThereAre) {
  const temporary_folder temporary;
  const std::string& folder = temporary.path();
  fs::create_directories(folder + "/jax/_src");
  std::ofstream{folder + "/jax/__init__.py"} << fake_jax;
  std::ofstream{folder + "/jax/_src/__init__.py"};
  std::ofstream{folder + "/jax/_src/hardware_utils.py"};
  const std::string command = "PYTHONPATH=" + folder +
                              " " GPUMEM_BENCH_PROGRAM
                              " claims --with jax --only fraction-leaves-the-rest --python python3 --json " +
                              folder + "/claims.json >" + folder + "/said 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream said{folder + "/said"};
  ASSERT_EQ(status, 0) << std::string{std::istreambuf_iterator<char>{said}, {}};
  const auto got = nlohmann::json::parse(std::ifstream{folder + "/claims.json"})["claims"][0]["by_frameworks"][0];
  EXPECT_EQ(got["framework"], "JAX 0.0");
  const auto& alone = got["figures"][0];
  EXPECT_EQ(alone["went"], "done; done");
  // 30 % of 24 GiB in pages of 2 MiB, a context of 450 MiB and three handles of 32 MiB.
  EXPECT_EQ(alone["first_holds_bytes"], std::uint64_t{7374 + 450 + 96} << 20);
  EXPECT_EQ(alone["agrees"], true) << "the pool is the share, whatever else the process holds";
  EXPECT_EQ(got["verdict"], "holds");
}

}  // namespace
}  // namespace gpumem::bench
