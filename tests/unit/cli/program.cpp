#include "program.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace gpumem::cli {

namespace fs = std::filesystem;

std::string content_of(const std::string& file) {
  std::ifstream in{file, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

void Program::SetUp() {
  std::string name = (fs::temp_directory_path() / "gpumem-cli-XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  folder_ = name;
  unique_ = fs::path{name}.filename().string().substr(11) + std::to_string(::getpid());
  fs::create_directory(path("bin"));
  fs::create_directory(path("lib"));
  fs::copy_file(GPUMEM_PROGRAM, path("bin/gpumem"));
  fs::copy_file(GPUMEM_TEST_PRELOAD, path("lib/libgpumem_preload.so"));
  four_cards = "GPUMEM_NVML='" GPUMEM_TEST_NVML "' GPUMEM_CUDA_DRIVER=/no/driver FAKENVML_CARDS=4 FAKENVML_UUIDS=";
  for (int i = 0; i < 4; ++i) four_cards += (i == 0 ? "" : ",") + uuid(i).substr(4);
}

void Program::TearDown() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

// A sanitized program under `run` gets the preload library before its sanitizer's, which is harmless here.
#ifdef __SANITIZE_ADDRESS__
constexpr const char* sanitizer = " ASAN_OPTIONS=verify_asan_link_order=0 ";
#else
constexpr const char* sanitizer = " ";
#endif

outcome Program::run(const std::string& arguments, const std::string& environment) {
  const std::string command = "env -i PATH=\"$PATH\" GPUMEM_SHARED_FOLDER='" + path("shared") + "'" + sanitizer +
                              environment + " '" + path("bin/gpumem") + "' " + arguments + " >'" + path("out") +
                              "' 2>'" + path("err") + "' </dev/null";
  const int code = std::system(command.c_str());
  return {WIFEXITED(code) ? WEXITSTATUS(code) : -1, content_of(path("out")), content_of(path("err"))};
}

void Program::expect_refused(const std::string& arguments, int exit_status, const std::string& reason,
                             const std::string& environment) {
  const outcome got = run(arguments, environment);
  EXPECT_EQ(got.exit_status, exit_status) << arguments << ": " << got.err;
  EXPECT_EQ(got.out, "") << arguments;
  EXPECT_THAT(got.err, ::testing::StartsWith("gpumem: ")) << arguments;
  EXPECT_THAT(got.err, ::testing::HasSubstr(reason)) << arguments;
  EXPECT_EQ(std::count(got.err.begin(), got.err.end(), '\n'), 1) << got.err;
}

std::string Program::as_another_user() const {
  if (::geteuid() != 0) return "";
  ::chmod(folder_.c_str(), 0755);
  return "setpriv --reuid=65534 --regid=65534 --clear-groups";
}

void Program::write(const std::string& name, const std::string& text, unsigned mode) const {
  std::ofstream{path(name)} << text;
  ::chmod(path(name).c_str(), mode);
}

}  // namespace gpumem::cli
