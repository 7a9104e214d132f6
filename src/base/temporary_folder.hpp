/// A temporary folder, removed with its contents by the destructor.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace gpumem {

class temporary_folder {
 public:
  /// Creates the folder in TMPDIR or /tmp, with access for the user alone. `path` is empty on failure.
  explicit temporary_folder(const std::string& prefix = "gpumem-") {
    std::error_code failed;
    std::string name = (std::filesystem::temp_directory_path(failed) / (prefix + "XXXXXX")).string();
    if (!failed && ::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~temporary_folder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder& operator=(temporary_folder&&) = delete;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string path(const std::string& file) const { return path_ + "/" + file; }

 private:
  std::string path_;
};

}  // namespace gpumem
