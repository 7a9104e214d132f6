/// Layout: a header of 64 bytes, then one zstd frame that holds columns. A column is the width of its values in bytes,
/// then one plane for each byte, lowest byte first. Only little-endian machines are supported, as by CUDA.
#include "binary_trace.hpp"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <bit>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "bits.hpp"
#include "gpumem/request.hpp"
#include "reader_limits.hpp"
#include "text.hpp"

namespace gpumem::bench {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int level = 19;
constexpr std::uint64_t most_ops = std::uint64_t{1} << 32;
constexpr std::uint64_t largest_block = std::uint64_t{1} << 48;
constexpr std::uint64_t largest_live = std::uint64_t{1} << 56;
constexpr std::uint64_t most_time_ns = std::uint64_t{10'000} * 3600 * 1'000'000'000;
constexpr std::size_t version_at = 7;
constexpr char version_without_refused = 1;
constexpr char version_with_refused = 2;

struct header {
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
static_assert(sizeof(header) == 64);

std::uint64_t checksum_of(const header& of) { return XXH3_64bits(&of, sizeof of - sizeof of.checksum); }

status bad(std::string why) { return {errc::corrupt, std::move(why)}; }

/// Bytes needed for any value up to `most`.
unsigned width_of(std::uint64_t most) { return std::max(1U, (static_cast<unsigned>(std::bit_width(most)) + 7) / 8); }

template <typename number>
void put_column(std::string& out, const std::vector<number>& values) {
  const std::uint64_t most = values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  const unsigned width = width_of(most);
  out.push_back(static_cast<char>(width));
  for (unsigned byte = 0; byte < width; ++byte) {
    for (const number each : values) out.push_back(static_cast<char>(each >> (8 * byte)));
  }
}

/// A column where it lies in the payload.
class column_view {
 public:
  column_view() = default;
  column_view(const char* planes, std::uint64_t count, unsigned width) noexcept
      : planes_{reinterpret_cast<const unsigned char*>(planes)}, count_{count}, width_{width} {}

  std::uint64_t operator[](std::uint64_t i) const noexcept {
    std::uint64_t value = 0;
    for (unsigned byte = 0; byte < width_; ++byte) value |= std::uint64_t{planes_[byte * count_ + i]} << (8 * byte);
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

/// The columns of a trace. Each has one entry an operation, an allocation, a free or a size.
struct columns {
  std::vector<std::uint64_t> streams;
  std::vector<std::uint64_t> unit;       ///< one entry: the unit of the times, in nanoseconds
  std::vector<std::uint64_t> times;      ///< by operation: units since the previous one
  std::vector<std::uint8_t> kinds;       ///< one bit an operation: 1 is a free
  std::vector<std::uint64_t> sizes;      ///< in order of first appearance
  std::vector<std::uint32_t> size_of;    ///< by allocation: index into `sizes`
  std::vector<std::uint32_t> back;       ///< by free: how many allocations back its block was allocated
  std::vector<std::uint16_t> stream_of;  ///< by operation; empty if the trace has one stream
  // Only of version 2: requests that were refused.
  std::vector<std::uint64_t> refused_before;  ///< by refused request: index of the operation that followed
  std::vector<std::uint64_t> refused_time;    ///< in nanoseconds
  std::vector<std::uint64_t> refused_size;
  std::vector<std::uint16_t> refused_stream;
  std::vector<std::uint64_t> refused_within;  ///< one entry
  std::vector<std::uint8_t> refusing_policy;  ///< its characters
};

columns columns_of(const trace& of) {
  columns out;
  out.streams = of.streams;
  std::unordered_map<std::uint64_t, std::uint32_t> known;
  std::vector<std::uint32_t> allocation_of(of.slots);
  std::uint32_t allocations = 0;
  std::uint64_t before = 0;
  std::uint64_t unit = 0;
  out.kinds.resize((of.ops.size() + 7) / 8);
  for (std::size_t i = 0; i < of.ops.size(); ++i) {
    const trace_op& op = of.ops[i];
    out.times.push_back(op.time_ns - before);
    unit = std::gcd(unit, op.time_ns - before);
    before = op.time_ns;
    if (of.streams.size() > 1) out.stream_of.push_back(op.stream);
    if (op.kind == op_kind::free) {
      out.kinds[i / 8] = static_cast<std::uint8_t>(out.kinds[i / 8] | 1U << (i % 8));
      out.back.push_back(allocations - allocation_of[op.slot]);
      continue;
    }
    allocation_of[op.slot] = allocations++;
    const auto [at, added] = known.emplace(op.bytes, static_cast<std::uint32_t>(out.sizes.size()));
    if (added) out.sizes.push_back(op.bytes);
    out.size_of.push_back(at->second);
  }
  out.unit = {std::max<std::uint64_t>(unit, 1)};
  for (std::uint64_t& each : out.times) each /= out.unit.front();
  for (const refused_request& each : of.refused) {
    out.refused_before.push_back(each.before_op);
    out.refused_time.push_back(each.time_ns);
    out.refused_size.push_back(each.bytes);
    out.refused_stream.push_back(each.stream);
  }
  out.refused_within = {of.refused_within_bytes};
  out.refusing_policy.assign(of.refusing_policy.begin(), of.refusing_policy.end());
  return out;
}

/// The order of the columns is part of the format.
std::string payload_of(const columns& of) {
  std::string out;
  const std::vector<std::uint64_t> size_count{of.sizes.size()};
  put_column(out, of.streams);
  put_column(out, of.unit);
  put_column(out, of.times);
  put_column(out, of.kinds);
  put_column(out, size_count);
  put_column(out, of.sizes);
  put_column(out, of.size_of);
  put_column(out, of.back);
  if (!of.stream_of.empty()) put_column(out, of.stream_of);
  if (of.refused_size.empty()) return out;
  put_column(out, std::vector<std::uint64_t>{of.refused_size.size(), of.refusing_policy.size()});
  put_column(out, of.refused_before);
  put_column(out, of.refused_time);
  put_column(out, of.refused_size);
  put_column(out, of.refused_stream);
  put_column(out, of.refused_within);
  put_column(out, of.refusing_policy);
  return out;
}

/// The same columns in a payload.
struct column_views {
  column_view streams;
  column_view unit;
  column_view times;
  column_view kinds;
  column_view sizes;
  column_view size_of;
  column_view back;
  column_view stream_of;
  // Only of version 2.
  column_view refused_before;
  column_view refused_time;
  column_view refused_size;
  column_view refused_stream;
  column_view refused_within;
  column_view refusing_policy;
};

bool take_refused(column_reader& reader, column_views& views) {
  column_view counts;
  if (!reader.take(counts, 2, 8)) return false;
  const std::uint64_t count = counts[0];
  return reader.take(views.refused_before, count, 8) && reader.take(views.refused_time, count, 8) &&
         reader.take(views.refused_size, count, 8) && reader.take(views.refused_stream, count, 2) &&
         reader.take(views.refused_within, 1, 8) && reader.take(views.refusing_policy, counts[1], 1);
}

result<column_views> read_columns(std::string_view payload, const header& head) {
  column_reader reader{payload};
  column_views views;
  column_view size_count;
  const bool whole = reader.take(views.streams, head.streams, 8) && reader.take(views.unit, 1, 8) &&
                     reader.take(views.times, head.ops, 8) && reader.take(views.kinds, (head.ops + 7) / 8, 1) &&
                     reader.take(size_count, 1, 8) && reader.take(views.sizes, size_count[0], 8) &&
                     reader.take(views.size_of, head.allocations, 4) &&
                     reader.take(views.back, head.ops - head.allocations, 4) &&
                     (head.streams < 2 || reader.take(views.stream_of, head.ops, 2)) &&
                     (head.magic[version_at] != version_with_refused || take_refused(reader, views)) && reader.at_end();
  if (!whole) return bad("damaged: a column's length differs from the header's");
  return views;
}

/// Turns columns into operations. Assigns slots in the same order as the CSV reader.
class op_builder {
 public:
  op_builder(const column_views& columns, const header& head, trace& built)
      : columns_{columns}, head_{head}, trace_{built} {
    trace_.ops.resize(head.ops);
    slot_of_.resize(head.allocations);
    allocation_in_.resize(head.slots);
    free_slots_.reserve(head.slots);
  }

  status run() {
    std::uint64_t time = 0;
    const std::uint64_t unit = columns_.unit[0];
    for (std::size_t i = 0; i < trace_.ops.size(); ++i) {
      trace_op& op = trace_.ops[i];
      if (unit != 0 && columns_.times[i] > (most_time_ns - time) / unit) {
        return bad(fmt::format("damaged: the time of operation {} is impossible", i + 1));
      }
      op.time_ns = time += columns_.times[i] * unit;
      if (columns_.stream_of.size() != 0) op.stream = static_cast<std::uint16_t>(columns_.stream_of[i]);
      const bool is_free = (columns_.kinds[i / 8] >> (i % 8) & 1U) != 0;
      const bool good = op.stream < head_.streams && (is_free ? free_one(op) : allocate_one(op));
      if (!good) return bad(fmt::format("damaged: operation {} is impossible", i + 1));
    }
    return allocated_ == head_.allocations && slots_ == head_.slots ? status{} : bad("damaged: operations are missing");
  }

 private:
  bool allocate_one(trace_op& op) {
    if (allocated_ == head_.allocations) return false;
    const std::uint64_t size_index = columns_.size_of[allocated_];
    if (size_index >= columns_.sizes.size()) return false;
    op.bytes = columns_.sizes[size_index];
    if (op.bytes == 0 || op.bytes > largest_block) return false;
    if (free_slots_.empty()) {
      if (slots_ == head_.slots) return false;
      op.slot = slots_++;
    } else {
      op.slot = free_slots_.back();
      free_slots_.pop_back();
    }
    slot_of_[allocated_] = op.slot;
    allocation_in_[op.slot] = ++allocated_;
    live_bytes_ += round_up(op.bytes, block_granularity);
    if (live_bytes_ > largest_live) return false;
    trace_.peak_live_bytes = std::max(trace_.peak_live_bytes, live_bytes_);
    return true;
  }
  bool free_one(trace_op& op) {
    if (freed_ == columns_.back.size()) return false;
    const std::uint64_t back = columns_.back[freed_++];
    if (back == 0 || back > allocated_) return false;
    const std::uint64_t which = allocated_ - back;
    op.slot = slot_of_[which];
    if (allocation_in_[op.slot] != which + 1) return false;  // already freed
    allocation_in_[op.slot] = 0;
    op.kind = op_kind::free;
    op.bytes = columns_.sizes[columns_.size_of[which]];
    live_bytes_ -= round_up(op.bytes, block_granularity);
    free_slots_.push_back(op.slot);
    return true;
  }

  const column_views& columns_;
  const header& head_;
  trace& trace_;
  std::vector<std::uint32_t> slot_of_;        ///< by allocation
  std::vector<std::uint64_t> allocation_in_;  ///< by slot: number of its allocation plus 1; 0 if free
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t allocated_ = 0;
  std::uint64_t freed_ = 0;
  std::uint32_t slots_ = 0;
  std::uint64_t live_bytes_ = 0;
};

using file_pointer = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

result<std::string> content_of(const std::string& path) {
  const file_pointer file{std::fopen(path.c_str(), "rbe"), std::fclose};
  std::string out;
  if (file == nullptr || std::fseek(file.get(), 0, SEEK_END) != 0) {
    return status{errc::invalid_argument, fmt::format("cannot be opened: {}", std::strerror(errno))};
  }
  const long bytes = std::ftell(file.get());
  std::rewind(file.get());
  out.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  if (bytes < 0 || std::fread(out.data(), 1, out.size(), file.get()) != out.size()) {
    return status{errc::invalid_argument, "cannot be read"};
  }
  return out;
}

/// The requests that were refused, as the columns have them.
status add_refused(const column_views& read, trace& made) {
  std::uint64_t before = 0;
  std::uint64_t time_ns = 0;
  for (std::uint64_t i = 0; i < read.refused_size.size(); ++i) {
    const refused_request each{read.refused_before[i], read.refused_time[i], read.refused_size[i],
                               static_cast<std::uint16_t>(read.refused_stream[i])};
    const bool possible = each.before_op >= before && each.before_op <= made.ops.size() && each.time_ns >= time_ns &&
                          each.time_ns <= most_time_ns && each.bytes != 0 && each.bytes <= largest_block &&
                          each.stream < made.streams.size();
    if (!possible) return bad(fmt::format("damaged: refused request {} is impossible", i + 1));
    before = each.before_op;
    time_ns = each.time_ns;
    made.refused.push_back(each);
  }
  if (read.refused_within.size() != 0) made.refused_within_bytes = read.refused_within[0];
  for (std::uint64_t i = 0; i < read.refusing_policy.size(); ++i) {
    made.refusing_policy.push_back(static_cast<char>(read.refusing_policy[i]));
  }
  return {};
}

bool is_known(char version) { return version == version_without_refused || version == version_with_refused; }

/// The size of the columns if every value has its full width; each column has a byte for its width.
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
         head.slots * (sizeof(std::uint64_t) + sizeof(std::uint32_t));
}

status check_header(const header& head) {
  if (!is_known(head.magic[version_at])) {
    return bad(fmt::format("a .gmtrace of version {}, expected version {} or {}",
                           static_cast<int>(head.magic[version_at]), static_cast<int>(version_without_refused),
                           static_cast<int>(version_with_refused)));
  }
  if (head.checksum != checksum_of(head)) return bad("damaged: the checksum of the header does not match");
  const bool possible = head.ops > 0 && head.ops <= most_ops && head.allocations <= head.ops &&
                        head.slots <= head.allocations && head.streams >= 1 && head.streams <= 65536;
  // The header does not count refused requests; the limit on expansion bounds them.
  const bool counted = head.magic[version_at] == version_without_refused;
  if (!possible || (counted && head.payload_bytes > most_payload_bytes(head))) {
    return bad("damaged: the header has impossible counts");
  }
  return {};
}

}  // namespace

bool is_binary_trace(const std::string& path) {
  const file_pointer file{std::fopen(path.c_str(), "rbe"), std::fclose};
  std::array<char, 8> begin{};
  return file != nullptr && std::fread(begin.data(), 1, begin.size(), file.get()) == begin.size() &&
         std::string_view{begin.data(), version_at} == binary_trace_magic;
}

std::optional<std::uint64_t> ops_of_binary_trace(const std::string& path) {
  const file_pointer file{std::fopen(path.c_str(), "rbe"), std::fclose};
  header head;
  const bool whole = file != nullptr && std::fread(&head, 1, sizeof head, file.get()) == sizeof head &&
                     std::string_view{head.magic.data(), version_at} == binary_trace_magic &&
                     is_known(head.magic[version_at]);
  return whole ? std::optional{head.ops} : std::nullopt;
}

result<trace> read_binary_trace(const std::string& path) {
  const auto file = content_of(path);
  if (!file) return file.why();
  header head;
  if (file->size() < sizeof head) return bad("cut short: less than a header");
  std::memcpy(&head, file->data(), sizeof head);
  if (status good = check_header(head); !good) return good;
  const std::string_view frame = std::string_view{*file}.substr(sizeof head);
  // Its columns are whole or of no use: every one has a part of each operation.
  if (ZSTD_isError(ZSTD_findFrameCompressedSize(frame.data(), frame.size())) != 0) {
    return bad("cut short or damaged: the compressed data does not end; nothing of it can be read");
  }
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != head.payload_bytes) {
    return bad("damaged: the length of the compressed data differs from the header's");
  }
  if (expands_too_far(frame.size(), head.payload_bytes)) {
    return bad(fmt::format("the data expands more than {}-fold", most_expansion));
  }
  // Twice a reader's: an operation has as little as 2.1 bytes in the columns, and 26 in memory.
  if (memory_of(head) > most_reader_bytes(2 * head.payload_bytes)) {
    return bad(
        fmt::format("{} operations in {} bytes need more memory than a reader takes", head.ops, head.payload_bytes));
  }
  std::string payload(head.payload_bytes, '\0');
  const std::size_t got = ZSTD_decompress(payload.data(), payload.size(), frame.data(), frame.size());
  if (ZSTD_isError(got) != 0 || got != payload.size()) {
    return bad(fmt::format("damaged: {}", ZSTD_isError(got) != 0 ? ZSTD_getErrorName(got) : "the data ends early"));
  }
  if (XXH3_64bits(payload.data(), payload.size()) != head.payload_checksum) {
    return bad("damaged: the checksum of the data does not match");
  }
  const auto all = read_columns(payload, head);
  if (!all) return all.why();
  trace out;
  for (std::uint64_t i = 0; i < all->streams.size(); ++i) out.streams.push_back(all->streams[i]);
  out.slots = head.slots;
  out.skipped_rows = head.skipped_rows;
  if (status built = op_builder{*all, head, out}.run(); !built) return built;
  if (status added = add_refused(*all, out); !added) return added;
  return out;
}

namespace {

status not_written(const std::string& path, int error) {
  return {errc::bad_setting,
          fmt::format("{}: cannot be written: {}", printable(path, 4096), std::strerror(error != 0 ? error : EIO))};
}

/// Appends what zstd skips until the reader takes the expansion for harmless.
void pad_for_reader(std::string& frame, std::uint64_t payload_bytes) {
  if (!expands_too_far(frame.size(), payload_bytes)) return;
  constexpr std::uint32_t skippable = 0x184d2a50;
  const auto padding = static_cast<std::uint32_t>(payload_bytes / most_expansion);
  for (const std::uint32_t word : {skippable, padding}) {
    for (unsigned byte = 0; byte < sizeof word; ++byte) frame.push_back(static_cast<char>(word >> (8 * byte)));
  }
  frame.append(padding, '\0');
}

}  // namespace

status write_binary_trace(const std::string& path, const trace& of) {
  const columns all = columns_of(of);
  const std::string payload = payload_of(all);
  header head;
  std::copy(binary_trace_magic.begin(), binary_trace_magic.end(), head.magic.begin());
  head.magic[version_at] = of.refused.empty() ? version_without_refused : version_with_refused;
  head.ops = of.ops.size();
  head.slots = of.slots;
  head.streams = static_cast<std::uint32_t>(of.streams.size());
  head.skipped_rows = of.skipped_rows;
  head.allocations = all.size_of.size();
  head.payload_bytes = payload.size();
  head.payload_checksum = XXH3_64bits(payload.data(), payload.size());
  head.checksum = checksum_of(head);
  std::string frame(ZSTD_compressBound(payload.size()), '\0');
  const std::size_t bytes = ZSTD_compress(frame.data(), frame.size(), payload.data(), payload.size(), level);
  if (ZSTD_isError(bytes) != 0) return {errc::bad_setting, fmt::format("{}: {}", path, ZSTD_getErrorName(bytes))};
  frame.resize(bytes);
  pad_for_reader(frame, payload.size());
  const std::string temporary = path + ".new";
  std::FILE* const file = std::fopen(temporary.c_str(), "wbe");
  if (file == nullptr) return not_written(path, errno);
  const bool written = std::fwrite(&head, 1, sizeof head, file) == sizeof head &&
                       std::fwrite(frame.data(), 1, frame.size(), file) == frame.size() && std::fflush(file) == 0;
  const int error = written ? 0 : errno;
  const bool closed = std::fclose(file) == 0;
  if (written && closed && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int last = written ? errno : error;
  (void)std::remove(temporary.c_str());
  return not_written(path, last);
}

status write_csv_trace(const std::string& path, const trace& of) {
  constexpr std::uint64_t first_pointer = 0x7f0000000000;
  const std::string temporary = path + ".new";
  const gzFile file = gzopen(temporary.c_str(), path.ends_with(".gz") ? "wb" : "wbT");
  if (file == nullptr) return not_written(path, errno);
  bool good = gzputs(file, "Thread,Time,Action,Pointer,Size,Stream\n") > 0;
  const auto write_row = [&](std::uint64_t time_ns, std::string_view action, const std::string& pointer,
                             std::uint64_t bytes, std::uint64_t stream) {
    const std::uint64_t us = time_ns / 1000;
    const std::uint64_t s = us / 1'000'000;
    const std::string row = fmt::format("1,{:02}:{:02}:{:02}:{:06},{},{},{},{}\n", s / 3600, s / 60 % 60, s % 60,
                                        us % 1'000'000, action, pointer, bytes, stream);
    good = good && gzwrite(file, row.data(), static_cast<unsigned>(row.size())) == static_cast<int>(row.size());
  };
  const std::string refused_by =
      of.refused_within_bytes == 0 ? "(nil)" : fmt::format("{}@{}", of.refusing_policy, of.refused_within_bytes);
  auto refused = of.refused.begin();
  for (std::size_t i = 0; i <= of.ops.size(); ++i) {
    for (; refused != of.refused.end() && refused->before_op <= i; ++refused) {
      write_row(refused->time_ns, "allocate failure", refused_by, refused->bytes, of.streams[refused->stream]);
    }
    if (i == of.ops.size()) break;
    const trace_op& op = of.ops[i];
    write_row(op.time_ns, op.kind == op_kind::free ? "free" : "allocate",
              fmt::format("{:#x}", first_pointer + std::uint64_t{op.slot} * 512), op.bytes, of.streams[op.stream]);
  }
  const int error = good ? 0 : errno;
  good = gzclose(file) == Z_OK && good;
  if (good && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int last = error != 0 ? error : errno;
  (void)std::remove(temporary.c_str());
  return not_written(path, last);
}

status write_trace(const std::string& path, const trace& of) {
  if (path.ends_with(".gmtrace")) return write_binary_trace(path, of);
  if (path.ends_with(".csv") || path.ends_with(".csv.gz")) return write_csv_trace(path, of);
  return {errc::bad_setting,
          fmt::format("{}: expected a name that ends in .gmtrace, .csv or .csv.gz", printable(path, 4096))};
}

}  // namespace gpumem::bench
