// A temporary folder, removed with its contents by the destructor.
#pragma once

#include <string>

namespace gpumem::cli {

class temporary_folder {
 public:
  /// Creates the folder in TMPDIR or /tmp. `path` is empty on failure.
  explicit temporary_folder(const std::string& prefix);
  ~temporary_folder();
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gpumem::cli
