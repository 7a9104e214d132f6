/// Traces as compact files (`.gmtrace`): a tenth of the size of CSV.gz, and loaded without parsing.
///
/// docs/traces.md describes the format. It keeps operations, sizes, times, streams, and the allocation of each free. It
/// drops pointers and threads, which a replay does not need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gpumem/status.hpp"
#include "trace.hpp"

namespace gpumem::bench {

/// The version follows these bytes: 1 to 3 (compact_format.hpp).
inline constexpr std::string_view binary_trace_magic{"GMTRACE", 7};

/// Whether a file begins with the magic bytes of a compact trace of any version.
bool is_binary_trace(const std::string& path);

/// The number of operations, read from the header; empty if the file is not a compact trace.
std::optional<std::uint64_t> ops_of_binary_trace(const std::string& path);

/// Loads a trace; sets neither name nor path. If the end of the file is missing, loads its whole sections. `corrupt`
/// names the damage (a checksum, a length, an impossible operation) without the path.
result<trace> read_binary_trace(const std::string& path);

/// Writes the file completely or not at all; `bad_setting` names path and reason.
status write_binary_trace(const std::string& path, const trace& recorded);

/// Writes RMM's CSV, compressed if the name ends in `.gz`. Pointers are derived from the slots.
status write_csv_trace(const std::string& path, const trace& recorded);

/// Chooses the format by the ending: `.gmtrace`, `.csv` or `.csv.gz`; `bad_setting` for any other.
status write_trace(const std::string& path, const trace& recorded);

}  // namespace gpumem::bench
