/// A file checked at the start of a run and written at its end.
#pragma once

#include <string>
#include <string_view>

#include "gpumem/status.hpp"

namespace gpumem::bench {

class output_file {
 public:
  /// An empty path means no file; `-` means standard output. Creates a missing file; leaves an existing one unchanged
  /// until `write`.
  explicit output_file(std::string path) : path_{std::move(path)} {}
  /// Removes the file if it was created and never written.
  ~output_file();
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;

  [[nodiscard]] bool wanted() const noexcept { return !path_.empty(); }
  [[nodiscard]] bool is_standard_output() const noexcept { return path_ == "-"; }
  /// Checks that the file can be written; `bad_setting` names path and reason.
  status try_out();
  /// Replaces the file's contents.
  status write(std::string_view text);

 private:
  [[nodiscard]] status failed(int error) const;
  std::string path_;
  bool created_ = false;
};

/// Writes all of `text` to standard output.
status print_out(std::string_view text);

}  // namespace gpumem::bench
