#include "simulated_cuda.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "process_files.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;

/// Without the start-up modules of Python PyTorch's own figures are missing, and without a library another one is
/// loaded.
constexpr std::array expected_files{"libcuda.so.1",
                                    "libcudart.so.13",
                                    "libcublas.so.13",
                                    "libcublasLt.so.13",
                                    "libcudnn.so.9",
                                    "libcufft.so.12",
                                    "libcufile.so.0",
                                    "libcupti.so.13",
                                    "libcurand.so.10",
                                    "libcusolver.so.12",
                                    "libcusparse.so.12",
                                    "libcusparseLt.so.0",
                                    "libnccl.so.2",
                                    "libnvToolsExt.so.1",
                                    "libnvidia-ml.so.1",
                                    "libnvrtc.so.13",
                                    "libnvshmem_host.so.3",
                                    "python/sitecustomize.py",
                                    "python/gpumem_compile.py",
                                    "python/gpumem_doctor.py",
                                    "python/gpumem_referee.py",
                                    "python/gpumem_simulated_torch.py",
                                    "python/gpumem_simulated_xla.py",
                                    "python/gpumem_values.py",
                                    "values/values.cpp"};

}  // namespace

std::string how_to_complete() {
  std::error_code error;
  const fs::path prefix = own_program().parent_path().parent_path();
  if (fs::exists(prefix / "__init__.py", error)) {
    return "install the whole wheel file again (pip install --force-reinstall --no-deps FILE.whl)";
  }
  if (fs::exists(prefix / "CMakeCache.txt", error)) {
    return fmt::format("build all of it (cmake {0} && cmake --build {0} --target gpumem_simulator)", prefix.string());
  }
  return fmt::format(
      "build and install all of it, in the folder of gpumem's sources (cmake --preset release && cmake --build "
      "--preset "
      "release --target gpumem_simulator && cmake --install build/release --component simcuda --prefix {})",
      prefix.string());
}

result<std::string> find_simulated_driver() {
  std::error_code error;
  const fs::path own_folder = own_program().parent_path();
  std::string looked;
  for (const fs::path& folder :
       {own_folder / ".." / "simcuda", own_folder / ".." / GPUMEM_LIBRARY_FOLDER / "gpumem" / "simcuda",
        own_folder / ".." / "lib" / "gpumem" / "simcuda"}) {
    const fs::path path = folder.lexically_normal();
    if (fs::exists(path / "libcudart.so.13", error)) return path.string();
    looked += (looked.empty() ? "" : ", ") + path.string();
  }
  return status{errc::unsupported,
                fmt::format("no simulated CUDA (libcudart.so.13) in {}: it is built with the headers of CUDA 13 "
                            "(without a Toolkit: scripts/cuda_headers, and the line that it prints); {}",
                            looked, how_to_complete())};
}

std::vector<std::string> missing_files(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const char* const each : expected_files) {
    if (!fs::exists(fs::path{folder} / each, error)) paths.emplace_back(each);
  }
  return paths;
}

std::vector<std::string> libraries_in(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator{folder, error}) {
    const std::string name = entry.path().filename().string();
    const auto dot = name.rfind(".so.");
    if (dot != std::string::npos && !entry.is_symlink() &&
        name.find_first_not_of("0123456789", dot + 4) == std::string::npos) {
      paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void link_plain_names(const std::string& folder, const std::string& links) {
  std::error_code error;
  for (const fs::path file : libraries_in(folder)) {
    const std::string name = file.filename().string();
    const std::string plain = name.substr(0, name.rfind(".so.") + 3);
    if (fs::exists(fs::path{folder} / plain, error)) continue;
    fs::create_directories(links, error);
    fs::create_symlink(file, fs::path{links} / plain, error);
  }
}

}  // namespace gpumem::cli
