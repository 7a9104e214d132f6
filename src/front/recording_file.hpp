/// The file of a recording: whatever ends the program, the rows so far can be read.
///
/// Every row is in the file when `write` returns. It is a call and no mapped memory, because a process that cuts a
/// mapped file ends those that write to it. A compressed file is a sequence of gzip members that each stand alone. The
/// rows of the last member stand in it uncompressed, until there are enough to compress; its header keeps space for
/// their compressed form. Not synchronised.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "gpumem/status.hpp"

namespace gpumem {

class recording_file {
 public:
  /// Rows that are compressed together: at most what one uncompressed block of deflate holds.
  static constexpr std::size_t member_bytes = 60'000;

  recording_file() = default;
  /// Completes the file, except in a forked child, whose parent writes to it.
  ~recording_file();
  recording_file(const recording_file&) = delete;
  recording_file& operator=(const recording_file&) = delete;

  /// `descriptor` is that of an empty file, open for writing, which the caller closes later.
  void open(int descriptor, bool compressed);
  /// Writes whole rows. The error of this and of `flush` is the reason alone. After an error the file ends with the row
  /// before.
  status write(std::string_view rows);
  /// Ends the gzip member: the file is whole.
  status flush();

 private:
  status write_bytes(std::string_view bytes, std::uint64_t offset) const;
  status begin_member();
  status end_member();
  status shorten(std::uint64_t bytes) const;

  int file_ = -1;
  pid_t owner_ = 0;
  bool compressed_ = false;
  bool seekable_ = false;    ///< otherwise bytes are only appended: a pipe
  std::uint64_t end_ = 0;    ///< of the rows; of the members before, where rows are pending
  std::string pending_;      ///< rows of the last member
  std::string compression_;  ///< of `pending_`; a member to reuse its memory
};

}  // namespace gpumem
