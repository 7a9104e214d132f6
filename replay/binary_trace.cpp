/// Reads compact traces (compact_format.hpp). If the end of the file is missing, reads up to the last whole section.
#include "binary_trace.hpp"

#include <fmt/format.h>
#include <zstd.h>
#include <zstd_errors.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "bits.hpp"
#include "compact_format.hpp"
#include "gpumem/request.hpp"
#include "reader_limits.hpp"
#include "whole_file.hpp"

namespace gpumem::bench {
namespace {

using header = compact_header;
constexpr std::uint64_t most_ops = std::uint64_t{1} << 32;
constexpr std::uint64_t most_time_ns = std::uint64_t{10'000} * 3600 * 1'000'000'000;

std::uint64_t checksum_of(const header& head) { return XXH3_64bits(&head, sizeof head - sizeof head.checksum); }

/// A view of a column in the payload.
class column_view {
 public:
  column_view() = default;
  column_view(const char* planes, std::uint64_t count, unsigned width) noexcept
      : planes_{reinterpret_cast<const unsigned char*>(planes)}, count_{count}, width_{width} {}

  std::uint64_t operator[](std::uint64_t index) const noexcept {
    std::uint64_t value = 0;
    for (unsigned byte = 0; byte < width_; ++byte) value |= std::uint64_t{planes_[byte * count_ + index]} << (8 * byte);
    return value;
  }
  [[nodiscard]] std::uint64_t size() const noexcept { return count_; }

 private:
  const unsigned char* planes_ = nullptr;
  std::uint64_t count_ = 0;
  unsigned width_ = 0;
};

/// Reads columns from the front of a payload.
class column_reader {
 public:
  explicit column_reader(std::string_view payload) : rest_{payload} {}

  /// False if the payload is too short, or if values are wider than `most_width` bytes.
  bool take(column_view& column, std::uint64_t count, unsigned most_width) {
    const auto width = rest_.empty() ? 0U : static_cast<unsigned>(static_cast<unsigned char>(rest_.front()));
    if (width == 0 || width > most_width || count > (rest_.size() - 1) / width) return false;
    column = {rest_.data() + 1, count, width};
    rest_.remove_prefix(1 + width * count);
    return true;
  }
  [[nodiscard]] bool at_end() const noexcept { return rest_.empty(); }

 private:
  std::string_view rest_;
};

/// The columns of one section.
struct section_columns {
  column_view times;
  column_view kinds;
  column_view sizes;
  column_view size_of;
  column_view back;
  column_view stream_of;
  std::uint64_t ops = 0;

  [[nodiscard]] bool frees(std::uint64_t index) const noexcept { return (kinds[index / 8] >> (index % 8) & 1U) != 0; }
};

/// False if the payload does not have the whole section.
bool take_section(column_reader& reader, const header& head, std::uint64_t ops, section_columns& section) {
  section.ops = ops;
  column_view size_count;
  if (!reader.take(section.times, ops, 8) || !reader.take(section.kinds, (ops + 7) / 8, 1)) return false;
  std::uint64_t frees = 0;
  for (std::uint64_t i = 0; i < ops; ++i) frees += static_cast<std::uint64_t>(section.frees(i));
  return reader.take(size_count, 1, 8) && reader.take(section.sizes, size_count[0], 8) &&
         reader.take(section.size_of, ops - frees, 4) && reader.take(section.back, frees, 4) &&
         (head.streams < 2 || reader.take(section.stream_of, ops, 2));
}

/// The columns of refused requests; version 1 has none.
struct refused_columns {
  column_view before, time, size, stream, within, policy;
};

bool take_refused(column_reader& reader, refused_columns& refused) {
  column_view counts;
  if (!reader.take(counts, 2, 8)) return false;
  const std::uint64_t count = counts[0];
  return reader.take(refused.before, count, 8) && reader.take(refused.time, count, 8) &&
         reader.take(refused.size, count, 8) && reader.take(refused.stream, count, 2) &&
         reader.take(refused.within, 1, 8) && reader.take(refused.policy, counts[1], 1);
}

/// Turns sections into operations. Assigns slots in the same order as the CSV reader.
class op_builder {
 public:
  op_builder(const header& head, std::uint64_t unit, trace& built) : head_{head}, unit_{unit}, trace_{built} {}

  status add(const section_columns& section) {
    allocated_before_ = allocated();
    freed_before_ = freed_;
    for (std::uint64_t i = 0; i < section.sizes.size(); ++i) sizes_.push_back(section.sizes[i]);
    for (std::uint64_t i = 0; i < section.ops; ++i) {
      trace_op& op = trace_.ops.emplace_back();
      const std::uint64_t number = trace_.ops.size();
      if (unit_ != 0 && section.times[i] > (most_time_ns - time_ns_) / unit_) {
        return damaged(fmt::format("damaged: the time of operation {} is impossible", number));
      }
      op.time_ns = time_ns_ += section.times[i] * unit_;
      if (section.stream_of.size() != 0) op.stream = static_cast<std::uint16_t>(section.stream_of[i]);
      const bool good =
          op.stream < head_.streams && (section.frees(i) ? free_one(section, op) : allocate_one(section, op));
      if (!good) return damaged(fmt::format("damaged: operation {} is impossible", number));
    }
    return {};
  }

  [[nodiscard]] bool complete() const noexcept {
    return allocated() == head_.allocations && trace_.slots == head_.slots;
  }

 private:
  struct slot_use {
    std::uint64_t allocation = 0;  ///< number of the allocation plus 1; 0 if the slot is free
    std::uint64_t bytes = 0;
  };

  [[nodiscard]] std::uint64_t allocated() const noexcept { return slot_of_.size(); }

  bool allocate_one(const section_columns& section, trace_op& op) {
    const std::uint64_t index = allocated() - allocated_before_;
    if (index >= section.size_of.size()) return false;
    const std::uint64_t size_index = section.size_of[index];
    if (size_index >= sizes_.size()) return false;
    op.bytes = sizes_[size_index];
    if (op.bytes == 0 || op.bytes > largest_block) return false;
    if (free_slots_.empty()) {
      if (trace_.slots == head_.slots) return false;
      op.slot = trace_.slots++;
      uses_.emplace_back();
    } else {
      op.slot = free_slots_.back();
      free_slots_.pop_back();
    }
    slot_of_.push_back(op.slot);
    uses_[op.slot] = {allocated(), op.bytes};
    live_bytes_ += round_up(op.bytes, block_granularity);
    if (live_bytes_ > largest_live) return false;
    trace_.peak_live_bytes = std::max(trace_.peak_live_bytes, live_bytes_);
    return true;
  }
  bool free_one(const section_columns& section, trace_op& op) {
    const std::uint64_t index = freed_++ - freed_before_;
    if (index >= section.back.size()) return false;
    const std::uint64_t back = section.back[index];
    if (back == 0 || back > allocated()) return false;
    const std::uint64_t allocation = allocated() - back;
    op.slot = slot_of_[allocation];
    if (uses_[op.slot].allocation != allocation + 1) return false;  // already freed
    uses_[op.slot].allocation = 0;
    op.kind = op_kind::free;
    op.bytes = uses_[op.slot].bytes;
    live_bytes_ -= round_up(op.bytes, block_granularity);
    free_slots_.push_back(op.slot);
    return true;
  }

  const header& head_;
  const std::uint64_t unit_;
  trace& trace_;
  std::vector<std::uint64_t> sizes_;    ///< of all sections so far
  std::vector<std::uint32_t> slot_of_;  ///< by allocation
  std::vector<slot_use> uses_;          ///< by slot
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t allocated_before_ = 0;  ///< the current section
  std::uint64_t freed_before_ = 0;
  std::uint64_t freed_ = 0;
  std::uint64_t time_ns_ = 0;
  std::uint64_t live_bytes_ = 0;
};

using file_pointer = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// Adds the refused requests of the columns to the trace.
status add_refused(const refused_columns& read, trace& made) {
  std::uint64_t before = 0;
  std::uint64_t time_ns = 0;
  for (std::uint64_t i = 0; i < read.size.size(); ++i) {
    const refused_request each{read.before[i], read.time[i], read.size[i], static_cast<std::uint16_t>(read.stream[i])};
    const bool possible = each.before_op >= before && each.before_op <= made.ops.size() && each.time_ns >= time_ns &&
                          each.time_ns <= most_time_ns && each.bytes != 0 && each.bytes <= largest_block &&
                          each.stream < made.streams.size();
    if (!possible) return damaged(fmt::format("damaged: refused request {} is impossible", i + 1));
    before = each.before_op;
    time_ns = each.time_ns;
    made.refused.push_back(each);
  }
  if (read.within.size() != 0) made.refused_within_bytes = read.within[0];
  for (std::uint64_t i = 0; i < read.policy.size(); ++i) {
    made.refusing_policy.push_back(static_cast<char>(read.policy[i]));
  }
  return {};
}

bool is_known(char version) { return version >= version_without_refused && version <= version_in_sections; }

std::uint64_t sections_of(const header& head) {
  return head.magic[version_offset] == version_in_sections ? (head.ops + section_ops - 1) / section_ops : 1;
}

/// The largest possible size of the columns: every value at full width, and one byte for each column's width.
std::uint64_t most_payload_bytes(const header& head) {
  constexpr std::uint64_t columns_and_counts = 9 + 2 * sizeof(std::uint64_t);
  constexpr std::uint64_t of_operation = sizeof(std::uint64_t) + 1 + sizeof(std::uint16_t);  // time, kind, stream
  constexpr std::uint64_t of_allocation = sizeof(std::uint64_t) + sizeof(std::uint32_t);     // size, its index
  return columns_and_counts + head.streams * sizeof(std::uint64_t) + head.ops * of_operation +
         head.allocations * of_allocation + (head.ops - head.allocations) * sizeof(std::uint32_t);
}

/// The host memory for the columns and the trace.
std::uint64_t memory_of(const header& head) {
  return head.payload_bytes + head.ops * sizeof(trace_op) + head.allocations * sizeof(std::uint32_t) +
         head.slots * (2 * sizeof(std::uint64_t) + sizeof(std::uint32_t));
}

status check_header(const header& head) {
  if (!is_known(head.magic[version_offset])) {
    return damaged(fmt::format("a .gmtrace of version {}, expected version {} to {}",
                               static_cast<int>(head.magic[version_offset]), static_cast<int>(version_without_refused),
                               static_cast<int>(version_in_sections)));
  }
  if (head.checksum != checksum_of(head)) return damaged("damaged: the checksum of the header does not match");
  const bool possible = head.ops > 0 && head.ops <= most_ops && head.allocations <= head.ops &&
                        head.slots <= head.allocations && head.streams >= 1 && head.streams <= 65536;
  // The header does not count refused requests; the limit on expansion bounds them.
  const bool counted = head.magic[version_offset] == version_without_refused;
  if (!possible || (counted && head.payload_bytes > most_payload_bytes(head))) {
    return damaged("damaged: the header has impossible counts");
  }
  return {};
}

status expands_too_much() { return damaged(fmt::format("the data expands more than {}-fold", most_expansion)); }

/// Decompresses as much of the payload as a frame without its end contains.
result<std::string> decompress_cut(std::string_view frame, std::uint64_t payload_bytes) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream{ZSTD_createDStream(), ZSTD_freeDStream};
  if (stream == nullptr) return status{errc::host_failure, "no memory to decompress"};
  std::string payload;
  ZSTD_inBuffer input{frame.data(), frame.size(), 0};
  constexpr std::size_t piece_bytes = std::size_t{1} << 20;
  for (;;) {
    const std::size_t before = payload.size();
    payload.resize(before + piece_bytes);
    ZSTD_outBuffer output{payload.data(), payload.size(), before};
    const std::size_t code = ZSTD_decompressStream(stream.get(), &output, &input);
    payload.resize(output.pos);
    if (ZSTD_isError(code) != 0) return damaged(fmt::format("damaged: {}", ZSTD_getErrorName(code)));
    if (payload.size() > payload_bytes) return damaged("damaged: more data than the header says");
    if (expands_too_far(frame.size(), payload.size())) return expands_too_much();
    if (payload.size() == before) return payload;
  }
}

result<std::string> decompress_whole(std::string_view frame, const header& head) {
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != head.payload_bytes) {
    return damaged("damaged: the length of the compressed data differs from the header's");
  }
  if (expands_too_far(frame.size(), head.payload_bytes)) return expands_too_much();
  // Twice a reader's: an operation has as little as 2.1 bytes in the columns, and 26 in memory.
  if (memory_of(head) > most_reader_bytes(2 * head.payload_bytes)) {
    return damaged(
        fmt::format("{} operations in {} bytes need more memory than a reader takes", head.ops, head.payload_bytes));
  }
  std::string payload(head.payload_bytes, '\0');
  const std::size_t got = ZSTD_decompress(payload.data(), payload.size(), frame.data(), frame.size());
  if (ZSTD_isError(got) != 0 || got != payload.size()) {
    return damaged(fmt::format("damaged: {}", ZSTD_isError(got) != 0 ? ZSTD_getErrorName(got) : "the data ends early"));
  }
  if (XXH3_64bits(payload.data(), payload.size()) != head.payload_checksum) {
    return damaged("damaged: the checksum of the data does not match");
  }
  return payload;
}

/// Builds the trace from the payload; if it is not `whole`, from its whole sections.
result<trace> trace_of(std::string_view payload, const header& head, bool whole) {
  const auto differs = [] { return damaged("damaged: a column's length differs from the header's"); };
  column_reader reader{payload};
  column_view streams;
  column_view unit;
  if (!reader.take(streams, head.streams, 8) || !reader.take(unit, 1, 8)) {
    return whole ? differs() : damaged("cut short: no operation is whole");
  }
  trace recorded;
  for (std::uint64_t i = 0; i < streams.size(); ++i) recorded.streams.push_back(streams[i]);
  recorded.skipped_rows = head.skipped_rows;
  if (whole) recorded.ops.reserve(head.ops);
  op_builder builder{head, unit[0], recorded};
  const std::uint64_t sections = sections_of(head);
  std::uint64_t read = 0;
  for (; read < sections; ++read) {
    section_columns section;
    const std::uint64_t ops = sections == 1 ? head.ops : std::min(section_ops, head.ops - read * section_ops);
    if (!take_section(reader, head, ops, section)) break;
    if (status added = builder.add(section); !added) return added;
  }
  if (whole && read != sections) return differs();
  if (recorded.ops.empty()) return damaged(fmt::format("cut short: no section of {} operations is whole", section_ops));
  if (read == sections && !builder.complete()) return damaged("damaged: operations are missing");
  refused_columns refused;
  const bool has_refused = head.magic[version_offset] != version_without_refused;
  const bool refused_read = read == sections && has_refused && take_refused(reader, refused);
  if (whole && ((has_refused && !refused_read) || !reader.at_end())) return differs();
  if (refused_read) {
    if (status added = add_refused(refused, recorded); !added) return added;
  }
  if (!whole) {
    recorded.cut =
        fmt::format("cut short: read to operation {} of {}; {} are lost{}", recorded.ops.size(), head.ops,
                    head.ops - recorded.ops.size(), has_refused && !refused_read ? ", and the refused requests" : "");
  }
  return recorded;
}

}  // namespace

bool is_binary_trace(const std::string& path) {
  const file_pointer file{std::fopen(path.c_str(), "rbe"), std::fclose};
  std::array<char, 8> begin{};
  return file != nullptr && std::fread(begin.data(), 1, begin.size(), file.get()) == begin.size() &&
         std::string_view{begin.data(), version_offset} == binary_trace_magic;
}

std::optional<std::uint64_t> ops_of_binary_trace(const std::string& path) {
  const file_pointer file{std::fopen(path.c_str(), "rbe"), std::fclose};
  header head;
  const bool whole = file != nullptr && std::fread(&head, 1, sizeof head, file.get()) == sizeof head &&
                     std::string_view{head.magic.data(), version_offset} == binary_trace_magic &&
                     is_known(head.magic[version_offset]);
  return whole ? std::optional{head.ops} : std::nullopt;
}

result<trace> read_binary_trace(const std::string& path) {
  const auto file = read_file(path);
  if (!file) return status{file.code(), "cannot be read: " + file.why().message()};
  header head;
  if (file->size() < sizeof head) return damaged("cut short: less than a header");
  std::memcpy(&head, file->data(), sizeof head);
  if (status good = check_header(head); !good) return good;
  const std::string_view frame = std::string_view{*file}.substr(sizeof head);
  const std::size_t frame_bytes = ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (ZSTD_isError(frame_bytes) != 0 && ZSTD_getErrorCode(frame_bytes) == ZSTD_error_srcSize_wrong) {
    const auto payload = decompress_cut(frame, head.payload_bytes);
    return payload ? trace_of(*payload, head, false) : payload.why();
  }
  if (ZSTD_isError(frame_bytes) != 0) return damaged(fmt::format("damaged: {}", ZSTD_getErrorName(frame_bytes)));
  const auto payload = decompress_whole(frame, head);
  return payload ? trace_of(*payload, head, true) : payload.why();
}

}  // namespace gpumem::bench
