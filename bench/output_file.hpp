/// A file that a run writes at its end and checks at its beginning.
#pragma once

#include <string>
#include <string_view>

#include "gpumem/status.hpp"

namespace gpumem::bench {

class output_file {
 public:
  /// An empty path is no file; `-` is standard output. Creates the file where there is none, and leaves one that
  /// exists as it is until `write`.
  explicit output_file(std::string path) : path_{std::move(path)} {}
  /// A file that was created and never written does not stay.
  ~output_file();
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;

  [[nodiscard]] bool wanted() const noexcept { return !path_.empty(); }
  [[nodiscard]] bool is_standard_output() const noexcept { return path_ == "-"; }
  /// Whether it can be written; `bad_setting` names path and reason.
  status try_out();
  /// Replaces what is there.
  status write(std::string_view text);

 private:
  [[nodiscard]] status failed(int error) const;
  std::string path_;
  bool created_ = false;
};

/// All of `text` to standard output.
status print_out(std::string_view text);

}  // namespace gpumem::bench
