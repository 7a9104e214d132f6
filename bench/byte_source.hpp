/// The bytes of a file, plain or gzip, decided by its content and never by its name.
///
/// Reads forwards in pieces. Concatenated gzip members are one stream; one that ends early, whose checksum does not
/// match or that is followed by other bytes is an error. Not synchronised.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::bench {

class byte_source {
 public:
  /// `invalid_argument` without a place in front: `no such file`, `a directory, not a file`.
  static result<std::unique_ptr<byte_source>> open(const std::string& path);
  ~byte_source();
  byte_source(const byte_source&) = delete;
  byte_source& operator=(const byte_source&) = delete;

  /// Fills `into` as far as there are bytes; 0 is the end. `corrupt` says what is wrong with the compression.
  result<std::size_t> read(std::span<char> into);

 private:
  struct file_closer {
    void operator()(std::FILE* file) const noexcept { (void)std::fclose(file); }
  };
  explicit byte_source(std::FILE* file);
  status fill();
  result<std::size_t> read_gzip(std::span<char> into);
  status inflate_some(std::span<char> into, std::size_t& produced);
  status start_gzip();

  std::unique_ptr<std::FILE, file_closer> file_;
  std::vector<unsigned char> raw_;  ///< as in the file; `begin_` to `end_` is not yet consumed
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool at_end_ = false;  ///< of the file
  bool gzip_ = false;
  bool inflating_ = false;  ///< `stream_` is set up
  bool in_member_ = false;  ///< the current gzip member is not yet complete
  z_stream stream_{};
  status failed_;  ///< told once everything before the damage has been handed out
};

}  // namespace gpumem::bench
