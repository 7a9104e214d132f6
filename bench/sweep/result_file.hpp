/// Results as lines of JSON with checksums: appended one by one, and readable after any interruption.
///
/// `{"crc":"9ae0daaf","unit":{"key":"..."...}}`: the CRC-32 covers the text from `"unit"` to before the last brace. A
/// torn line, or one with a wrong checksum, is never a result. A writer holds a lock on its file; a second writer of
/// the same name uses the next name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "gpumem/status.hpp"

namespace gpumem::bench::sweep {

class result_file {
 public:
  /// Opens `FOLDER/KIND-LABEL.jsonl`, removes a torn last line, and locks the file. `bad_setting` names path and
  /// reason.
  static result<std::unique_ptr<result_file>> open(const std::string& folder, std::string_view kind,
                                                   const std::string& label);
  ~result_file();
  result_file& operator=(result_file&&) = delete;

  /// Appends one line, all or nothing; it is in the file on return. Any thread.
  status append(std::string_view unit_json);

 private:
  result_file(std::string path, int fd) : path_{std::move(path)}, fd_{fd} {}
  std::string path_;
  int fd_;
  std::mutex mutex_;
};

/// `line_of` returns a unit's line with its newline. `unit_of` returns the unit of a line, or nothing if it is damaged.
std::string line_of(std::string_view unit_json);
std::string_view unit_of(std::string_view line) noexcept;

/// Calls `each(unit, offset)` for every intact line; `offset` is where the unit's text begins. Returns the number of
/// damaged lines, without a torn last line.
result<std::uint64_t> read_results(const std::string& path,
                                   const std::function<void(std::string_view unit, std::uint64_t offset)>& each);

}  // namespace gpumem::bench::sweep
