// scripts/cuda_headers in a separate folder, with a fake Python that has only the given packages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace gpumem {
namespace {

namespace fs = std::filesystem;

class CudaHeaders : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cuda_headers_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    fs::create_directories(folder_ / "scripts");
    fs::copy_file(GPUMEM_SOURCES "/scripts/cuda_headers", folder_ / "scripts/cuda_headers");
    // Its site is the folder `site`; pip creates only the requested header folder.
    std::ofstream{folder_ / "python"} << "#!/bin/sh\n[ $1 = -c ] && { echo " << folder_.string() << "/site; exit; }\n"
                                      << "while [ $1 != --target ]; do shift; done\n"
                                      << "echo \"$3\" > asked && mkdir -p \"$2/nvidia/cu13/include/crt\"\n";
    ::chmod((folder_ / "python").c_str(), 0700);
  }
  void TearDown() override { fs::remove_all(folder_); }

  int run(const std::string& version = "") const {
    return WEXITSTATUS(std::system(
        ("cd " + folder_.string() + " && scripts/cuda_headers " + version + " ./python > out 2> err || exit 1")
            .c_str()));
  }
  std::string content(const std::string& name) const {
    std::ifstream file{folder_ / name};
    return {std::istreambuf_iterator<char>{file}, {}};
  }
  void put(const std::string& name, const std::string& text) const {
    const fs::path file = folder_ / "site/nvidia/cu13" / name;
    fs::create_directories(file.parent_path());
    std::ofstream{file} << text;
  }

  fs::path folder_;
};

TEST_F(CudaHeaders, AreLaidOutAsAToolkit) {
  put("include/cuda.h", "#define CUDA_VERSION 13020\n");
  put("include/cuda_runtime_api.h", "");
  put("include/cublas_v2.h", "");
  put("lib/libcudart.so.13", "names");
  put("lib/libcudart_static.a", "");
  for (int again = 0; again < 2; ++again) ASSERT_EQ(run(), 0) << content("err");
  EXPECT_EQ(content("asked"), "nvidia-cuda-crt==13.2.*\n");
  EXPECT_EQ(content("out"),
            "cmake --preset release -D CUDAToolkit_ROOT=" + (folder_ / "build/cuda-headers").string() + "\n");
  EXPECT_EQ(content("build/cuda-headers/version.txt"), "CUDA Version 13.2.0\n");
  EXPECT_EQ(content("build/cuda-headers/lib64/libcudart.so"), "names");
  EXPECT_EQ(content("build/cuda-headers/lib64/libcudart.so.13"), "names") << "the runtime's double reads its names";
  EXPECT_TRUE(fs::is_directory(folder_ / "build/cuda-headers/include/crt"));
  EXPECT_TRUE(fs::exists(folder_ / "build/cuda-headers/include/cublas_v2.h"));
}

TEST_F(CudaHeaders, AreRefusedWithoutNvidiasPackages) {
  put("include/cuda.h", "#define CUDA_VERSION 13020\n");
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(content("err"), testing::HasSubstr("site/nvidia/cu13 has no headers of CUDA 13; expected a PyTorch"));
  EXPECT_FALSE(fs::exists(folder_ / "build"));
}

TEST_F(CudaHeaders, OfCuda12NeedNoPyTorch) {
  EXPECT_EQ(run("--cuda12"), 0) << content("err");
  EXPECT_EQ(content("asked"), "nvidia-cuda-runtime-cu12==12.4.127\n");
  EXPECT_EQ(content("out"),
            "cmake --preset release -D GPUMEM_CUDA12=" + (folder_ / "build/cuda12-headers").string() + "\n");
  EXPECT_TRUE(fs::is_directory(folder_ / "build/cuda12-headers"));
}

}  // namespace
}  // namespace gpumem
