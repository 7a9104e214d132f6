/// Reads the bytes of a file, plain or gzip. The content, not the name, decides which.
///
/// Reads forwards in pieces. Concatenated gzip members are one stream. A truncated member and a wrong checksum are
/// errors. Bytes behind the last member are an error unless they begin with 0: a recording reserves such space. Not
/// synchronised.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::bench {

class byte_source {
 public:
  /// `invalid_argument` gives only the reason, without the path: `no such file`, `a directory, not a file`.
  static result<std::unique_ptr<byte_source>> open(const std::string& path);
  ~byte_source();
  byte_source& operator=(byte_source&&) = delete;

  /// Reads up to `buffer.size()` bytes; 0 at the end. `corrupt` describes damaged compression, or an expansion beyond
  /// the limit (reader_limits.hpp).
  result<std::size_t> read(std::span<char> buffer);
  /// Whether `read` failed because the end of a gzip member is missing.
  [[nodiscard]] bool ends_early() const noexcept { return ends_early_; }

 private:
  struct file_closer {
    void operator()(std::FILE* file) const noexcept { (void)std::fclose(file); }
  };
  explicit byte_source(std::FILE* file);
  status fill();
  result<std::size_t> read_gzip(std::span<char> buffer);
  status inflate_some(std::span<char> buffer, std::size_t& produced);
  status start_gzip();

  std::unique_ptr<std::FILE, file_closer> file_;
  std::vector<unsigned char> raw_;  ///< as in the file; `begin_` to `end_` is not yet consumed
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool at_end_ = false;  ///< no more input in the file
  bool gzip_ = false;
  bool inflating_ = false;  ///< `stream_` is set up
  bool in_member_ = false;  ///< the current gzip member is not yet complete
  bool ends_early_ = false;
  std::uint64_t compressed_bytes_ = 0;
  std::uint64_t expanded_bytes_ = 0;
  z_stream stream_{};
  status failed_;  ///< reported after all bytes before the damage
};

}  // namespace gpumem::bench
