#include "recording_file.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>

namespace gpumem {
namespace {

// RFC 1952: ten bytes with the flags in the fourth, then an extra field (flag 4) of one subfield.
constexpr std::string_view pending_header{
    "\x1f\x8b\x08\x04\0\0\0\0\0\x03"
    "\xff\xff"
    "gm\xfb\xff",
    16};
constexpr std::uint64_t kept_bytes = 12 + 0xffff;  // header and extra field: reserved for the compressed member
// RFC 1951: a final stored block of 65,535 bytes. The file ends before that many.
constexpr std::string_view pending_block{"\x01\xff\xff\0\0", 5};
constexpr std::size_t plain_header_bytes = 12;  // written last, to switch to the compressed form in one write

status failed(int code) { return {errc::bad_setting, std::strerror(code)}; }

/// Returns the bytes after `offset` that RLIMIT_FSIZE allows; a write beyond it would end the program by SIGXFSZ. Read
/// at each write, because the program may change the limit.
std::uint64_t allowed_bytes(std::uint64_t offset) {
  ::rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_cur > offset ? limit.rlim_cur - offset : 0;
}

/// Compresses `bytes` into a gzip member.
status compress(std::string_view bytes, std::string& member) {
  z_stream stream{};
  constexpr int gzip_window = 15 + 16;
  if (const int code = deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, gzip_window, 8, Z_DEFAULT_STRATEGY);
      code != Z_OK) {
    return {errc::bad_setting, zError(code)};
  }
  member.resize(deflateBound(&stream, bytes.size()));
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib does not write to it
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(member.data());
  stream.avail_out = static_cast<uInt>(member.size());
  const int code = deflate(&stream, Z_FINISH);
  member.resize(stream.total_out);
  (void)deflateEnd(&stream);
  return code == Z_STREAM_END ? status{} : status{errc::bad_setting, zError(code)};
}

}  // namespace

void recording_file::open(int descriptor, bool compressed) {
  file_ = descriptor;
  struct stat found {};
  seekable_ = ::fstat(file_, &found) == 0 && S_ISREG(found.st_mode);
  owner_ = ::getpid();
  compressed_ = compressed;
  if (compressed) pending_.reserve(member_bytes);
}

recording_file::~recording_file() {
  if (file_ >= 0 && owner_ == ::getpid()) (void)flush();
}

status recording_file::write(std::string_view rows) {
  if (!compressed_) {
    if (status written = write_bytes(rows, end_); !written) {
      (void)shorten(end_);
      return written;
    }
    end_ += rows.size();
    return {};
  }
  if (pending_.size() + rows.size() > member_bytes) {
    if (status ended = end_member(); !ended) return ended;
  }
  const std::uint64_t begin = end_ + kept_bytes + pending_block.size();
  if (seekable_) {
    status written = pending_.empty() ? begin_member() : status{};
    if (written) written = write_bytes(rows, begin + pending_.size());
    if (!written) {
      (void)shorten(pending_.empty() ? end_ : begin + pending_.size());
      return written;
    }
  }
  pending_ += rows;
  return {};
}

status recording_file::flush() { return pending_.empty() ? status{} : end_member(); }

status recording_file::begin_member() {
  if (status written = write_bytes(pending_block, end_ + kept_bytes); !written) return written;
  return write_bytes(pending_header, end_);
}

/// Writes the compressed member into the kept space, its first bytes last, so that a kill at any moment leaves the rows
/// readable, compressed or not.
status recording_file::end_member() {
  if (status made = compress(pending_, compression_); !made) return made;
  const std::string_view member{compression_};
  if (!seekable_) {
    if (status written = write_bytes(member, 0); !written) return written;
  } else {
    status written = write_bytes(member.substr(plain_header_bytes), end_ + plain_header_bytes);
    if (written) written = write_bytes(member.substr(0, plain_header_bytes), end_);
    if (written) written = shorten(end_ + member.size());
    if (!written) return written;
    end_ += member.size();
  }
  pending_.clear();
  return {};
}

status recording_file::write_bytes(std::string_view bytes, std::uint64_t offset) const {
  if (seekable_ && bytes.size() > allowed_bytes(offset)) return failed(EFBIG);
  while (!bytes.empty()) {
    const ssize_t written = seekable_ ? ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset))
                                      : ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed(written < 0 ? errno : ENOSPC);
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

status recording_file::shorten(std::uint64_t bytes) const {
  if (!seekable_ || ::ftruncate(file_, static_cast<off_t>(bytes)) == 0) return {};
  return failed(errno);
}

}  // namespace gpumem
