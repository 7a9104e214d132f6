/// The compact trace format: parts shared by reader and writer.
///
/// Layout: a header of 64 bytes, then one zstd frame that holds columns. A column is the width of its values in bytes,
/// then one plane for each byte, lowest byte first. The columns of operations come in sections, so that a file whose
/// end is missing can be read to its last whole section. Only little-endian machines are supported, as by CUDA.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace gpumem::bench {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t version_offset = 7;  ///< within the magic bytes
constexpr char version_without_refused = 1;
constexpr char version_with_refused = 2;
constexpr char version_in_sections = 3;  ///< 1 and 2 have a single section

/// Operations in each section of version 3 but the last.
constexpr std::uint64_t section_ops = std::uint64_t{1} << 20;

struct compact_header {
  std::array<char, 8> magic{};
  std::uint64_t ops = 0;
  std::uint32_t slots = 0;
  std::uint32_t streams = 0;
  std::uint64_t skipped_rows = 0;
  std::uint64_t allocations = 0;
  std::uint64_t payload_bytes = 0;     ///< uncompressed
  std::uint64_t payload_checksum = 0;  ///< XXH3 of the payload
  std::uint64_t checksum = 0;          ///< XXH3 of the fields above
};
static_assert(sizeof(compact_header) == 64);

}  // namespace gpumem::bench
