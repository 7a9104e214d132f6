// A folder of this run's own, removed at its end.
#pragma once

#include <string>

namespace gpumem::cli {

class temporary_folder {
 public:
  /// In TMPDIR, or /tmp. `path` is empty if it cannot be made.
  explicit temporary_folder(const std::string& prefix);
  ~temporary_folder();
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gpumem::cli
