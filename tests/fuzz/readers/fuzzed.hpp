/// Shared by all fuzzers: the input as text, the count of its bytes, and an abort if a reader breaks its contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace gpumem::fuzz {

/// Counts the bytes of all inputs and prints the sum when the process ends.
struct byte_count {
  std::uint64_t bytes = 0;
  ~byte_count() { std::fprintf(stderr, "%llu bytes of input\n", static_cast<unsigned long long>(bytes)); }
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t bytes) {
  static byte_count counted;
  counted.bytes += bytes;
  return {reinterpret_cast<const char*>(data), bytes};
}

/// Ends the process, so that libFuzzer reports the input, unless `holds`.
inline void require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

}  // namespace gpumem::fuzz

/// libFuzzer calls it for every input.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);
