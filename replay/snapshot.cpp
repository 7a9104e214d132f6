/// Reads a device's events twice: backwards, to find the blocks live at the beginning; then forwards.
#include "snapshot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "assign_or_return.hpp"
#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "pickle.hpp"
#include "reader_limits.hpp"
#include "text.hpp"

namespace gpumem::bench {
namespace {

using index = pickle_data::index;

constexpr const char* how_to_record =
    "record with torch.cuda.memory._record_memory_history() before the work and write with _dump_snapshot";

struct block {
  std::int64_t bytes = 0;
  std::int64_t stream = 0;
};

/// An allocation, a free requested by the program, or a refused allocation.
struct event {
  bool allocates = false;
  bool refused = false;
  std::int64_t address = 0;
  block request;
  std::int64_t time_us = 0;
};

std::uint64_t key_of(std::int64_t address) { return static_cast<std::uint64_t>(address); }
using blocks_by_address = map_of_numbers<block>;

class snapshot_reader {
 public:
  snapshot_reader(const pickle_data& data, std::size_t bytes) : data_{data}, bytes_{bytes} {}

  /// The events of a device that concern the program's blocks. If the list is not `whole`, its last event may be cut.
  result<std::vector<event>> events(index list, bool whole) const {
    std::vector<event> decoded;
    constexpr std::size_t of_event = 2 * (sizeof(event) + sizeof(trace_op));  // many may refer to one in the file
    if (data_.items(list).size() > most_reader_bytes(bytes_) / of_event) {
      return damaged("the events need more memory than a reader takes");
    }
    for (const index each : data_.items(list)) {
      event next;
      bool of_block = false;
      if (status read = read_one(each, decoded.size(), next, of_block); !read) {
        if (!whole && each == data_.items(list).back()) break;  // the file ends within this event
        return read;
      }
      if (of_block) decoded.push_back(next);
    }
    return decoded;
  }

  /// The blocks that the program holds when the snapshot is taken.
  result<blocks_by_address> live_at_end(index segments, std::int64_t device) const {
    blocks_by_address live;
    std::set<index> seen;
    for (const index segment : data_.items(segments)) {
      std::int64_t own_device = 0;
      std::int64_t address = 0;
      std::int64_t stream = 0;
      if (status read = number_of(segment, "device", own_device); !read) return read;
      if (own_device != device) continue;
      if (status read = number_of(segment, "address", address); !read) return read;
      if (status read = number_of(segment, "stream", stream); !read) return read;
      const auto blocks = data_.find(segment, "blocks");
      if (!blocks) return damaged("a segment has no blocks");
      // Python writes each list once. Many references to one list would take time quadratic in the file's size.
      if (!seen.insert(*blocks).second) return damaged("two segments have the same list of blocks");
      for (const index each : data_.items(*blocks)) {
        if (status added = add_block(each, stream, address, live); !added) return added;
      }
    }
    return live;
  }

 private:
  /// Reads event `number`. Sets `of_block` if it concerns a block of the program.
  status read_one(index entry, std::size_t number, event& decoded, bool& of_block) const {
    const auto action = text_of(entry, "action");
    if (!action) return damaged(fmt::format("event {} has no action", number));
    decoded.allocates = *action == "alloc";
    decoded.refused = *action == "oom";
    of_block = decoded.allocates || decoded.refused || *action == "free_requested";
    if (!of_block) return {};
    if (!decoded.refused) {  // a refused event has device_free instead of addr
      if (status read = number_of(entry, "addr", decoded.address); !read) return read;
    }
    if (status read = number_of(entry, "size", decoded.request.bytes); !read) return read;
    if (status read = number_of(entry, "stream", decoded.request.stream); !read) return read;
    if (data_.find(entry, "time_us")) {  // missing before PyTorch 2.2
      if (status read = number_of(entry, "time_us", decoded.time_us); !read) return read;
    }
    if (decoded.request.bytes < 0 || decoded.request.bytes > std::int64_t{largest_block})
      return damaged(fmt::format("an event of {} bytes", decoded.request.bytes));
    return {};
  }
  /// Adds a block at `address`, unless the entry has its own address. Advances `address` to the next block.
  status add_block(index entry, std::int64_t stream, std::int64_t& address, blocks_by_address& blocks) const {
    std::int64_t bytes = 0;
    if (status read = number_of(entry, "size", bytes); !read) return read;
    if (data_.find(entry, "address")) {
      if (status read = number_of(entry, "address", address); !read) return read;
    }
    if (bytes < 0 || bytes > std::int64_t{largest_block} || address < 0)
      return damaged(fmt::format("a block of {} bytes", bytes));
    const auto state = text_of(entry, "state");
    if (!state) return damaged("a block has no state");
    if (*state == "active_allocated") {
      std::int64_t requested = bytes;
      if (data_.find(entry, "requested_size")) {
        if (status read = number_of(entry, "requested_size", requested); !read) return read;
      }
      if (requested < 0 || requested > bytes)
        return damaged(fmt::format("a block of {} bytes for {}", bytes, requested));
      if (!blocks.emplace(key_of(address), block{requested, stream}).second)
        return damaged(fmt::format("two blocks at {:#x}", address));
    }
    if (address > std::numeric_limits<std::int64_t>::max() - bytes)
      return damaged(fmt::format("a block at {:#x}", address));
    address += bytes;
    return {};
  }

  [[nodiscard]] std::optional<std::string_view> text_of(index entry, std::string_view key) const {
    const auto found = data_.find(entry, key);
    return found ? data_.text(*found) : std::nullopt;
  }
  status number_of(index entry, std::string_view key, std::int64_t& number) const {
    const auto found = data_.find(entry, key);
    const auto value = found ? data_.integer(*found) : std::nullopt;
    if (!value) return damaged(fmt::format("{} is missing or no number", key));
    number = *value;
    return {};
  }

  const pickle_data& data_;
  const std::size_t bytes_;
};

/// Computes the blocks live before the first event from those live at the end.
status rewind(const std::vector<event>& events, blocks_by_address& live) {
  for (std::size_t i = events.size(); i-- > 0;) {
    const event& e = events[i];
    if (e.refused) continue;
    if (e.allocates) {
      if (live.erase(key_of(e.address)) == 0)
        return damaged(fmt::format("event {}: the block at {:#x} ends nowhere", i, e.address));
    } else if (!live.emplace(key_of(e.address), e.request).second) {
      return damaged(fmt::format("event {}: the block at {:#x} is freed, and live afterwards", i, e.address));
    }
  }
  return {};
}

/// The blocks live before the first event, derived from events alone: those that are freed before they are allocated.
blocks_by_address freed_first(const std::vector<event>& events) {
  blocks_by_address blocks;
  std::set<std::uint64_t> seen;
  for (const event& e : events) {
    if (!e.refused && seen.insert(key_of(e.address)).second && !e.allocates)
      blocks.emplace(key_of(e.address), e.request);
  }
  return blocks;
}

/// Builds the operations of a trace.
class trace_maker {
 public:
  status allocate(std::int64_t address, const block& allocated, std::uint64_t time_ns) {
    if (allocated.bytes == 0) {
      ++recorded_.skipped_rows;
      return {};
    }
    trace_op op;
    op.time_ns = time_ns;
    op.bytes = static_cast<std::uint64_t>(allocated.bytes);
    if (status found = stream_index(allocated.stream, op.stream); !found) return found;
    if (free_slots_.empty()) {
      op.slot = recorded_.slots++;
    } else {
      op.slot = free_slots_.back();
      free_slots_.pop_back();
    }
    live_.insert_or_assign(key_of(address), op);
    live_bytes_ += round_up(op.bytes, block_granularity);
    if (live_bytes_ > largest_live) return damaged("more than 2^56 bytes are live");
    recorded_.peak_live_bytes = std::max(recorded_.peak_live_bytes, live_bytes_);
    recorded_.ops.push_back(op);
    return {};
  }
  status free(std::int64_t address, std::uint64_t time_ns) {
    const auto found = live_.find(key_of(address));
    if (found == live_.end()) return {};  // a block of 0 bytes
    trace_op op = found->second;
    op.kind = op_kind::free;
    op.time_ns = time_ns;
    live_bytes_ -= round_up(op.bytes, block_granularity);
    free_slots_.push_back(op.slot);
    live_.erase(found);
    recorded_.ops.push_back(op);
    return {};
  }
  status refuse(const block& request, std::uint64_t time_ns) {
    if (request.bytes == 0) return {};
    refused_request refused{recorded_.ops.size(), time_ns, static_cast<std::uint64_t>(request.bytes), 0};
    if (status found = stream_index(request.stream, refused.stream); !found) return found;
    recorded_.refused.push_back(refused);
    return {};
  }
  trace take() { return std::move(recorded_); }

 private:
  status stream_index(std::int64_t stream, std::uint16_t& position) {
    const auto as_recorded = static_cast<std::uint64_t>(stream);
    const auto [found, added] =
        stream_numbers_.try_emplace(as_recorded, static_cast<std::uint16_t>(recorded_.streams.size()));
    position = found->second;
    if (!added) return {};
    if (recorded_.streams.size() == most_streams) return damaged("more than 65536 streams");
    recorded_.streams.push_back(as_recorded);
    return {};
  }

  trace recorded_;
  map_of_numbers<trace_op> live_;
  map_of_numbers<std::uint16_t> stream_numbers_;
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t live_bytes_ = 0;
};

result<trace> make_trace(const std::vector<event>& events, const blocks_by_address& before) {
  std::vector<std::pair<std::uint64_t, block>> first{before.begin(), before.end()};
  std::sort(first.begin(), first.end(), [](const auto& lhs, const auto& rhs) { return lhs.first < rhs.first; });
  trace_maker maker;
  for (const auto& [at, of] : first) {
    if (status made = maker.allocate(static_cast<std::int64_t>(at), of, 0); !made) return made;
  }
  std::uint64_t time_ns = 0;
  for (const event& e : events) {
    // Times never go backwards, even if the clock did.
    const std::int64_t begin_us = events.front().time_us;
    const std::uint64_t since_us =
        e.time_us < begin_us ? 0 : static_cast<std::uint64_t>(e.time_us) - static_cast<std::uint64_t>(begin_us);
    time_ns = std::max(time_ns, std::min(since_us, std::uint64_t{1} << 45) * 1000);
    status made = e.refused     ? maker.refuse(e.request, time_ns)
                  : e.allocates ? maker.allocate(e.address, e.request, time_ns)
                                : maker.free(e.address, time_ns);
    if (!made) return made;
  }
  trace recorded = maker.take();
  if (recorded.ops.empty()) return damaged("no operations in the snapshot");
  return recorded;
}

/// Chooses the device whose events are read.
result<std::size_t> choose_device(const pickle_data& data, std::span<const index> traces, int wanted) {
  if (wanted >= 0) {
    if (static_cast<std::size_t>(wanted) < traces.size()) return static_cast<std::size_t>(wanted);
    return damaged(fmt::format("no device {}; the snapshot has {}", wanted, traces.size()));
  }
  std::optional<std::size_t> only;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    if (data.items(traces[i]).empty()) continue;
    if (only) return damaged(fmt::format("recordings of several devices; expected FILE:N, such as FILE:{}", *only));
    only = i;
  }
  if (!only) return damaged(fmt::format("a snapshot without a recording; {}", how_to_record));
  return *only;
}

}  // namespace

result<trace> trace_of_snapshot(std::string_view bytes, int device) {
  bool is_cut = false;
  ASSIGN_OR_RETURN(const auto data, pickle_data::read(bytes, &is_cut));
  const auto segments = data.find(data.root(), "segments");
  const auto traces = data.find(data.root(), "device_traces");
  if (is_cut && segments && !traces) {
    return damaged(fmt::format("cut short at byte {}: the file ends before its events", bytes.size()));
  }
  if (!segments || !traces) {
    return damaged(
        fmt::format("a pickle, but not a memory snapshot of PyTorch (segments, device_traces); {}", how_to_record));
  }
  const std::span<const index> all = data.items(*traces);
  ASSIGN_OR_RETURN(const auto chosen, choose_device(data, all, device));
  const snapshot_reader reader{data, bytes.size()};
  const std::span<const index> keys = data.items(data.root());
  const bool whole = !is_cut || chosen + 1 != all.size() || data.text(keys[keys.size() - 2]) != "device_traces";
  ASSIGN_OR_RETURN(const auto events, reader.events(all[chosen], whole));
  if (events.empty()) return damaged(fmt::format("no allocation was recorded; {}", how_to_record));
  if (!whole) {
    auto made = make_trace(events, freed_first(events));
    if (made) {
      made->cut = fmt::format(
          "cut short at byte {}; read to event {}; a snapshot does not say how many more there were, and blocks from "
          "before the recording are known only where an event frees them",
          bytes.size(), data.items(all[chosen]).size());
    }
    return made;
  }
  ASSIGN_OR_RETURN(auto live, reader.live_at_end(*segments, static_cast<std::int64_t>(chosen)));
  if (status went = rewind(events, live); !went) return went;
  auto made = make_trace(events, live);
  if (made && is_cut) made->cut = fmt::format("cut short at byte {}, behind the events, which are whole", bytes.size());
  return made;
}

}  // namespace gpumem::bench
