/// Writes pickles as Python does (protocol 4), value by value, for tests of the reader.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpumem::bench::pickled {

inline std::string little_endian(std::uint64_t value, std::size_t bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

inline std::string number(std::int64_t value) {
  if (value >= 0 && value < 256) return "K" + little_endian(static_cast<std::uint64_t>(value), 1);
  return "\x8a\x08" + little_endian(static_cast<std::uint64_t>(value), 8);
}

inline std::string text(std::string_view of) { return "\x8c" + little_endian(of.size(), 1) + std::string{of} + "\x94"; }

inline std::string list(const std::vector<std::string>& items) {
  std::string out = "]\x94(";
  for (const std::string& each : items) out += each;
  return out + "e";
}

inline std::string dictionary(const std::vector<std::pair<std::string_view, std::string>>& items) {
  std::string out = "}\x94(";
  for (const auto& [key, value] : items) out += text(key) + value;
  return out + "u";
}

/// A complete file with one value.
inline std::string file(const std::string& value) {
  return "\x80\x04\x95" + little_endian(value.size() + 1, 8) + value + ".";
}

inline std::string event(std::string_view action, std::int64_t at, std::int64_t bytes, std::int64_t time_us,
                         std::int64_t stream = 0) {
  return dictionary({{"action", text(action)},
                     {"addr", number(at)},
                     {"size", number(bytes)},
                     {"stream", number(stream)},
                     {"time_us", number(time_us)},
                     {"frames", list({})}});
}

inline std::string block(std::int64_t at, std::int64_t bytes, std::int64_t requested, std::string_view state) {
  return dictionary({{"address", number(at)},
                     {"size", number(bytes)},
                     {"requested_size", number(requested)},
                     {"state", text(state)}});
}

inline std::string segment(std::int64_t device, const std::vector<std::string>& blocks) {
  return dictionary(
      {{"device", number(device)}, {"address", number(4096)}, {"stream", number(0)}, {"blocks", list(blocks)}});
}

inline std::string snapshot(const std::vector<std::string>& segments, const std::vector<std::string>& traces) {
  return file(dictionary({{"segments", list(segments)}, {"device_traces", list(traces)}}));
}

/// A block from before the recording that stays live, one freed within it, one of another stream, and a failed
/// allocation.
inline std::string small_snapshot() {
  return snapshot({segment(0, {block(0x1000, 512, 500, "active_allocated"), block(0x1200, 1024, 0, "inactive"),
                               block(0x3000, 2048, 2000, "active_allocated")})},
                  {list({event("segment_alloc", 0x1000, 1 << 20, 100), event("free_requested", 0x1200, 1000, 110),
                         event("free_completed", 0x1200, 1000, 111), event("alloc", 0x3000, 2000, 120, 7),
                         event("oom", 0, 1 << 30, 130)})});
}

}  // namespace gpumem::bench::pickled
