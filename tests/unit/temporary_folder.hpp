// A temporary folder for one test, mode 0700, removed with its contents.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace gpumem {

class temporary_folder {
 public:
  temporary_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gpumem-test-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string path(const std::string& file) const { return path_ + "/" + file; }

 private:
  std::string path_;
};

}  // namespace gpumem
