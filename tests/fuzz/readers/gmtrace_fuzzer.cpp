// Compact traces. An input that begins with 0 is a file as it is. Any other is 64 bytes of a header and the payload
// before compression: the fuzzer compresses it and corrects lengths and checksums, which no mutation would find.
#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>

#include <cstring>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "binary_trace.hpp"
#include "checked_trace.hpp"

using namespace gpumem;

namespace {

constexpr std::size_t header_bytes = 64;
constexpr std::size_t payload_length_at = 40;
constexpr std::size_t payload_sum_at = 48;
constexpr std::size_t header_sum_at = 56;

void put(std::string& file, std::size_t offset, std::uint64_t value) {
  std::memcpy(file.data() + offset, &value, sizeof value);
}

std::string corrected(std::string_view input) {
  std::string file{input.substr(0, header_bytes)};
  const std::string_view payload = input.substr(header_bytes);
  std::memcpy(file.data(), bench::binary_trace_magic.data(), bench::binary_trace_magic.size());
  std::string frame(ZSTD_compressBound(payload.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), payload.data(), payload.size(), 1));
  put(file, payload_length_at, payload.size());
  put(file, payload_sum_at, XXH3_64bits(payload.data(), payload.size()));
  put(file, header_sum_at, XXH3_64bits(file.data(), header_sum_at));
  return file + frame;
}

/// The path of a file in memory with this content.
std::string file_with(std::string_view content) {
  static const int descriptor = ::memfd_create("trace", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  fuzz::require(::ftruncate(descriptor, 0) == 0 &&
                    ::pwrite(descriptor, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()),
                "the machine has memory for the file");
  return path;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  const std::string_view input = fuzz::text_of(data, bytes).substr(1);
  const bool whole_file = data[0] == 0 || input.size() < header_bytes;
  const std::string path = file_with(whole_file ? std::string{input} : corrected(input));
  static_cast<void>(bench::is_binary_trace(path));
  static_cast<void>(bench::ops_of_binary_trace(path));
  fuzz::check(bench::read_binary_trace(path));
  return 0;
}
