/// Plain files are passed through. Gzip is inflated with zlib, which checks each member's length and CRC-32.
#include "byte_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "reader_limits.hpp"

namespace gpumem::bench {
namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 17;
constexpr int gzip_only_window = 15 + 16;  // zlib: the largest window; requires a gzip header

bool is_gzip(const unsigned char* bytes, std::size_t count) {
  return count >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

}  // namespace

byte_source::byte_source(std::FILE* file) : file_{file}, raw_(piece_bytes) {}

byte_source::~byte_source() {
  if (inflating_) (void)inflateEnd(&stream_);
}

result<std::unique_ptr<byte_source>> byte_source::open(const std::string& path) {
  std::error_code why;
  const auto kind = std::filesystem::status(path, why).type();
  if (kind == std::filesystem::file_type::not_found) return status{errc::invalid_argument, "no such file"};
  if (kind == std::filesystem::file_type::directory) return status{errc::invalid_argument, "a directory, not a file"};
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return status{errc::invalid_argument, fmt::format("cannot be opened: {}", std::strerror(errno))};
  std::unique_ptr<byte_source> source{new byte_source{file}};
  if (status filled = source->fill(); !filled) return filled;
  source->gzip_ = is_gzip(source->raw_.data(), source->end_);
  return source;
}

/// Appends the next piece of the file to the unread rest of the buffer, which always has room for it.
status byte_source::fill() {
  std::memmove(raw_.data(), raw_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  const std::size_t got = std::fread(raw_.data() + end_, 1, raw_.size() - end_, file_.get());
  if (got < raw_.size() - end_) {
    if (std::ferror(file_.get()) != 0) {
      return {errc::invalid_argument, fmt::format("cannot be read: {}", std::strerror(errno))};
    }
    at_end_ = true;
  }
  end_ += got;
  return {};
}

result<std::size_t> byte_source::read(std::span<char> buffer) {
  if (gzip_) return read_gzip(buffer);
  if (begin_ == end_ && !at_end_) {
    if (status filled = fill(); !filled) return filled;
  }
  const std::size_t count = std::min(buffer.size(), end_ - begin_);
  std::memcpy(buffer.data(), raw_.data() + begin_, count);
  begin_ += count;
  return count;
}

/// Requires two buffered bytes, or the end of the file.
status byte_source::start_gzip() {
  if (!is_gzip(raw_.data() + begin_, end_ - begin_)) {
    return {errc::corrupt, "damaged gzip: other bytes follow the end of the compressed data"};
  }
  const int code = inflating_ ? inflateReset(&stream_) : inflateInit2(&stream_, gzip_only_window);
  if (code != Z_OK) return {errc::invalid_argument, fmt::format("zlib cannot start: {}", zError(code))};
  inflating_ = true;
  in_member_ = true;
  return {};
}

/// One step of decompression; adds the number of bytes it produced to `produced`.
status byte_source::inflate_some(std::span<char> buffer, std::size_t& produced) {
  const std::size_t before = begin_;
  stream_.next_in = raw_.data() + begin_;
  stream_.avail_in = static_cast<uInt>(end_ - begin_);
  stream_.next_out = reinterpret_cast<Bytef*>(buffer.data() + produced);
  stream_.avail_out = static_cast<uInt>(buffer.size() - produced);
  const int code = inflate(&stream_, Z_NO_FLUSH);
  begin_ = end_ - stream_.avail_in;
  compressed_bytes_ += begin_ - before;
  expanded_bytes_ += buffer.size() - stream_.avail_out - produced;
  produced = buffer.size() - stream_.avail_out;
  if (expands_too_far(compressed_bytes_, expanded_bytes_)) {
    return {errc::corrupt, fmt::format("the gzip data expands more than {}-fold", most_expansion)};
  }
  if (code == Z_STREAM_END) {
    in_member_ = false;
  } else if (code == Z_BUF_ERROR) {  // no progress although there is room: all input is used up
    if (at_end_) {
      ends_early_ = true;
      return {errc::corrupt, "cut short: the gzip data ends early"};
    }
  } else if (code != Z_OK) {
    return {errc::corrupt, fmt::format("damaged gzip: {}", stream_.msg != nullptr ? stream_.msg : zError(code))};
  }
  return {};
}

result<std::size_t> byte_source::read_gzip(std::span<char> buffer) {
  std::size_t produced = 0;
  while (failed_.ok() && produced < buffer.size()) {
    if (end_ - begin_ < 2 && !at_end_) failed_ = fill();
    if (failed_.ok() && !in_member_) {
      if (begin_ == end_ || (inflating_ && raw_[begin_] == 0)) break;
      failed_ = start_gzip();
    }
    if (failed_.ok()) failed_ = inflate_some(buffer, produced);
  }
  if (produced == 0 && !failed_.ok()) return failed_;
  return produced;
}

}  // namespace gpumem::bench
