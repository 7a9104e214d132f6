/// Results as lines of JSON, each with a checksum: appended one by one, and read again whatever happened in between.
///
/// `{"crc":"9ae0daaf","unit":{"key":"..."...}}`: the CRC-32 is that of the text from `"unit"` to before the last brace.
/// A line that is torn or does not match is never a result. A writer holds a lock on its file; a second one that wants
/// the same name takes the next.
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
  /// Opens `FOLDER/KIND-LABEL.jsonl`, cuts a torn last line off, and holds the lock. `bad_setting` names path and
  /// reason.
  static result<std::unique_ptr<result_file>> open(const std::string& folder, std::string_view kind,
                                                   const std::string& label);
  ~result_file();
  result_file(const result_file&) = delete;
  result_file& operator=(const result_file&) = delete;

  /// Any thread. One line, written whole or not at all; it is in the file when this returns.
  status append(std::string_view unit_json);

 private:
  result_file(std::string path, int fd) : path_{std::move(path)}, fd_{fd} {}
  std::string path_;
  int fd_;
  std::mutex mutex_;
};

/// The line of a unit, with its newline; and the unit of a line without it, or nothing where the line is damaged.
std::string line_of(std::string_view unit_json);
std::string_view unit_of(std::string_view line) noexcept;

/// Calls `each(unit, offset)` for every sound line of a file, where `offset` is that of the unit's text. Returns how
/// many lines were damaged, a torn last one left out.
result<std::uint64_t> read_results(const std::string& path,
                                   const std::function<void(std::string_view unit, std::uint64_t offset)>& each);

}  // namespace gpumem::bench::sweep
