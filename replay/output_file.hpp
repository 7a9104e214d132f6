/// Files of results: checked before a run, which may take hours, and written after it.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "gpumem/status.hpp"

namespace gpumem::bench {

/// Checks that the file can be written, and changes nothing. `replaced`: the file will be removed and created again, so
/// it must be a regular file. `bad_setting` names `option`, the path and the reason.
status check_output_file(const std::string& path, const char* option, bool replaced = false);

/// Replaces a file atomically: writes a temporary file beside `path` and renames it. The temporary name has another
/// ending, so that a reader of `*.prom` does not see it; the file has the mode of any new file. On failure returns
/// `bad_setting` as `check_output_file`, and leaves `path` unchanged.
status replace_file(const std::string& path, const char* option, std::string_view text);

/// Writes all of `text` to standard output.
status print_out(std::string_view text);

/// The file that an option names: none if the path is empty, standard output if it is `-`.
class output_file {
 public:
  output_file(const char* option, std::string path) : option_{option}, path_{std::move(path)} {}

  [[nodiscard]] bool wanted() const noexcept { return !path_.empty(); }
  [[nodiscard]] bool is_standard_output() const noexcept { return path_ == "-"; }
  /// As `check_output_file`.
  [[nodiscard]] status check() const;
  /// Replaces the file's contents.
  [[nodiscard]] status write(std::string_view text) const;

 private:
  const char* option_;
  std::string path_;
};

}  // namespace gpumem::bench
