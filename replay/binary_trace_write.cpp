/// Writes compact traces (compact_format.hpp) and CSV.
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <unordered_map>
#include <vector>

#include "binary_trace.hpp"
#include "compact_format.hpp"
#include "reader_limits.hpp"
#include "text.hpp"
#include "whole_file.hpp"

namespace gpumem::bench {
namespace {

constexpr int level = 19;

/// Bytes needed for any value up to `most`.
unsigned width_of(std::uint64_t most) { return std::max(1U, (static_cast<unsigned>(std::bit_width(most)) + 7) / 8); }

template <typename number>
void put_column(std::string& payload, const std::vector<number>& values) {
  const std::uint64_t most = values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  const unsigned width = width_of(most);
  payload.push_back(static_cast<char>(width));
  for (unsigned byte = 0; byte < width; ++byte) {
    for (const number each : values) payload.push_back(static_cast<char>(each >> (8 * byte)));
  }
}

/// Writes the sections of a trace. Keeps the sizes and allocations of earlier sections, to which later ones refer.
class section_writer {
 public:
  explicit section_writer(const trace& recorded) : trace_{recorded}, allocation_of_(recorded.slots) {
    std::uint64_t before = 0;
    for (const trace_op& op : recorded.ops) {
      unit_ = std::gcd(unit_, op.time_ns - before);
      before = op.time_ns;
    }
    unit_ = std::max<std::uint64_t>(unit_, 1);
  }

  [[nodiscard]] std::uint64_t unit() const noexcept { return unit_; }
  [[nodiscard]] std::uint32_t allocations() const noexcept { return allocations_; }

  /// Appends the operations from `begin` to `end`. The order of the columns is part of the format.
  void append(std::size_t begin, std::size_t end, std::string& payload) {
    columns& section = section_;
    section.clear();
    section.kinds.resize((end - begin + 7) / 8);
    for (std::size_t i = begin; i < end; ++i) add(trace_.ops[i], i - begin, section);
    put_column(payload, section.times);
    put_column(payload, section.kinds);
    put_column(payload, std::vector<std::uint64_t>{section.sizes.size()});
    put_column(payload, section.sizes);
    put_column(payload, section.size_of);
    put_column(payload, section.back);
    if (trace_.streams.size() > 1) put_column(payload, section.stream_of);
  }

 private:
  /// The columns of one section. Each has one entry an operation, an allocation, a free or a size.
  struct columns {
    std::vector<std::uint64_t> times;      ///< by operation: units since the previous one
    std::vector<std::uint8_t> kinds;       ///< one bit an operation: 1 is a free
    std::vector<std::uint64_t> sizes;      ///< that no earlier section has, in order of first appearance
    std::vector<std::uint32_t> size_of;    ///< by allocation: index into the sizes of all sections so far
    std::vector<std::uint32_t> back;       ///< by free: how many allocations back its block was allocated
    std::vector<std::uint16_t> stream_of;  ///< by operation

    void clear() {
      times.clear();
      kinds.clear();
      sizes.clear();
      size_of.clear();
      back.clear();
      stream_of.clear();
    }
  };

  void add(const trace_op& op, std::size_t index, columns& section) {
    section.times.push_back((op.time_ns - last_time_ns_) / unit_);
    last_time_ns_ = op.time_ns;
    section.stream_of.push_back(op.stream);
    if (op.kind == op_kind::free) {
      section.kinds[index / 8] = static_cast<std::uint8_t>(section.kinds[index / 8] | 1U << (index % 8));
      section.back.push_back(allocations_ - allocation_of_[op.slot]);
      return;
    }
    allocation_of_[op.slot] = allocations_++;
    const auto [known, added] = sizes_.emplace(op.bytes, static_cast<std::uint32_t>(sizes_.size()));
    if (added) section.sizes.push_back(op.bytes);
    section.size_of.push_back(known->second);
  }

  const trace& trace_;
  columns section_;
  std::uint64_t unit_ = 0;  ///< unit of the times, in nanoseconds
  std::uint64_t last_time_ns_ = 0;
  std::uint32_t allocations_ = 0;
  std::vector<std::uint32_t> allocation_of_;  ///< by slot
  std::unordered_map<std::uint64_t, std::uint32_t> sizes_;
};

void append_refused(const trace& recorded, std::string& payload) {
  std::vector<std::uint64_t> before;
  std::vector<std::uint64_t> time;
  std::vector<std::uint64_t> size;
  std::vector<std::uint16_t> stream;
  for (const refused_request& each : recorded.refused) {
    before.push_back(each.before_op);
    time.push_back(each.time_ns);
    size.push_back(each.bytes);
    stream.push_back(each.stream);
  }
  put_column(payload, std::vector<std::uint64_t>{size.size(), recorded.refusing_policy.size()});
  put_column(payload, before);
  put_column(payload, time);
  put_column(payload, size);
  put_column(payload, stream);
  put_column(payload, std::vector<std::uint64_t>{recorded.refused_within_bytes});
  put_column(payload, std::vector<std::uint8_t>(recorded.refusing_policy.begin(), recorded.refusing_policy.end()));
}

status not_written(const std::string& path, int error) {
  return {errc::bad_setting, fmt::format("{}: cannot be written: {}", printable(path, 4096), std::strerror(error))};
}

/// Appends a frame that zstd skips, if the reader would otherwise refuse the file for expanding too far.
void pad_for_reader(std::string& frame, std::uint64_t payload_bytes) {
  if (!expands_too_far(frame.size(), payload_bytes)) return;
  constexpr std::uint32_t skippable = 0x184d2a50;
  const auto padding = static_cast<std::uint32_t>(payload_bytes / most_expansion);
  for (const std::uint32_t word : {skippable, padding}) {
    for (unsigned byte = 0; byte < sizeof word; ++byte) frame.push_back(static_cast<char>(word >> (8 * byte)));
  }
  frame.append(padding, '\0');
}

/// Writes the rows of RMM's CSV, compressed unless `mode` has a T.
bool write_rows(std::FILE* target, const char* mode, const trace& recorded) {
  constexpr std::uint64_t first_pointer = 0x7f0000000000;
  const gzFile file = gzdopen(::dup(::fileno(target)), mode);
  if (file == nullptr) return false;
  bool good = gzputs(file, "Thread,Time,Action,Pointer,Size,Stream\n") > 0;
  const auto write_row = [&](std::uint64_t time_ns, std::string_view action, const std::string& pointer,
                             std::uint64_t bytes, std::uint64_t stream) {
    const std::uint64_t us = time_ns / 1000;
    const std::uint64_t s = us / 1'000'000;
    const std::string row = fmt::format("1,{:02}:{:02}:{:02}:{:06},{},{},{},{}\n", s / 3600, s / 60 % 60, s % 60,
                                        us % 1'000'000, action, pointer, bytes, stream);
    good = good && gzwrite(file, row.data(), static_cast<unsigned>(row.size())) == static_cast<int>(row.size());
  };
  const std::string refused_by = recorded.refused_within_bytes == 0
                                     ? "(nil)"
                                     : fmt::format("{}@{}", recorded.refusing_policy, recorded.refused_within_bytes);
  auto refused = recorded.refused.begin();
  for (std::size_t i = 0; i <= recorded.ops.size(); ++i) {
    for (; refused != recorded.refused.end() && refused->before_op <= i; ++refused) {
      write_row(refused->time_ns, "allocate failure", refused_by, refused->bytes, recorded.streams[refused->stream]);
    }
    if (i == recorded.ops.size()) break;
    const trace_op& op = recorded.ops[i];
    write_row(op.time_ns, op.kind == op_kind::free ? "free" : "allocate",
              fmt::format("{:#x}", first_pointer + std::uint64_t{op.slot} * 512), op.bytes,
              recorded.streams[op.stream]);
  }
  return gzclose(file) == Z_OK && good;
}

}  // namespace

status write_binary_trace(const std::string& path, const trace& recorded) {
  const bool in_sections = recorded.ops.size() > section_ops;
  section_writer sections{recorded};
  std::string payload;
  put_column(payload, recorded.streams);
  put_column(payload, std::vector<std::uint64_t>{sections.unit()});
  const std::size_t step = in_sections ? section_ops : recorded.ops.size();
  for (std::size_t begin = 0; begin < recorded.ops.size(); begin += step) {
    sections.append(begin, std::min(begin + step, recorded.ops.size()), payload);
  }
  if (in_sections || !recorded.refused.empty()) append_refused(recorded, payload);
  compact_header head;
  std::copy(binary_trace_magic.begin(), binary_trace_magic.end(), head.magic.begin());
  head.magic[version_offset] = in_sections                ? version_in_sections
                               : recorded.refused.empty() ? version_without_refused
                                                          : version_with_refused;
  head.ops = recorded.ops.size();
  head.slots = recorded.slots;
  head.streams = static_cast<std::uint32_t>(recorded.streams.size());
  head.skipped_rows = recorded.skipped_rows;
  head.allocations = sections.allocations();
  head.payload_bytes = payload.size();
  head.payload_checksum = XXH3_64bits(payload.data(), payload.size());
  head.checksum = XXH3_64bits(&head, sizeof head - sizeof head.checksum);
  std::string frame(ZSTD_compressBound(payload.size()), '\0');
  const std::size_t bytes = ZSTD_compress(frame.data(), frame.size(), payload.data(), payload.size(), level);
  if (ZSTD_isError(bytes) != 0) return {errc::bad_setting, fmt::format("{}: {}", path, ZSTD_getErrorName(bytes))};
  frame.resize(bytes);
  pad_for_reader(frame, payload.size());
  const int error = write_and_rename(path, [&](std::FILE* file) {
    return std::fwrite(&head, 1, sizeof head, file) == sizeof head && write_text(file, frame);
  });
  return error == 0 ? status{} : not_written(path, error);
}

status write_csv_trace(const std::string& path, const trace& recorded) {
  const char* const mode = path.ends_with(".gz") ? "wb" : "wbT";
  const int error = write_and_rename(path, [&](std::FILE* file) { return write_rows(file, mode, recorded); });
  return error == 0 ? status{} : not_written(path, error);
}

status write_trace(const std::string& path, const trace& recorded) {
  if (path.ends_with(".gmtrace")) return write_binary_trace(path, recorded);
  if (path.ends_with(".csv") || path.ends_with(".csv.gz")) return write_csv_trace(path, recorded);
  return {errc::bad_setting,
          fmt::format("{}: expected a name that ends in .gmtrace, .csv or .csv.gz", printable(path, 4096))};
}

}  // namespace gpumem::bench
