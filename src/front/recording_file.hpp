/// The file of a recording. Its rows stay readable even if the program crashes.
///
/// Every row is in the file when `write` returns. It uses write calls rather than a mapping, because if another process
/// truncates a mapped file, writing to the mapping ends the program. A compressed file is a sequence of independent
/// gzip members. The last member holds its rows uncompressed until there are enough to compress; its header reserves
/// space for their compressed form. Not synchronised.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "gpumem/status.hpp"

namespace gpumem {

class recording_file {
 public:
  /// The most bytes of rows in a member; they must fit an uncompressed deflate block.
  static constexpr std::size_t member_bytes = 60'000;

  recording_file() = default;
  /// Completes the file, except in a forked child, whose parent writes to it.
  ~recording_file();
  recording_file& operator=(recording_file&&) = delete;

  /// `descriptor` is an empty file open for writing; the caller closes it later.
  void open(int descriptor, bool compressed);
  /// Writes whole rows. After an error the file ends with the previous row. Error messages of this and of `flush` have
  /// only the reason, without the path.
  status write(std::string_view rows);
  /// Ends the gzip member, which completes the file.
  status flush();

 private:
  status write_bytes(std::string_view bytes, std::uint64_t offset) const;
  status begin_member();
  status end_member();
  status shorten(std::uint64_t bytes) const;

  int file_ = -1;
  pid_t owner_ = 0;
  bool compressed_ = false;
  bool seekable_ = false;    ///< false for a pipe, which can only be appended to
  std::uint64_t end_ = 0;    ///< end of the rows, or of the complete members in a compressed file
  std::string pending_;      ///< rows of the last member
  std::string compression_;  ///< compressed `pending_`; kept to reuse its memory
};

}  // namespace gpumem
