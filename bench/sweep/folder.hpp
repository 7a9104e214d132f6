/// A sweep's output folder: its manifest, its units, and the results so far.
///
///   sweep.json           manifest and version; a folder with a different one is refused
///   units.txt            key and trace of every unit, in the order of the merged results
///   results-LABEL.jsonl  one line a unit (result_file.hpp), one file a writer
///   times-LABEL.jsonl    measured seconds and memory; never part of the merged results
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpumem/status.hpp"
#include "plan.hpp"

namespace gpumem::bench::sweep {

struct key_hash {
  std::size_t operator()(const hash128& key) const noexcept { return key[0] ^ key[1]; }
};

/// Creates the folder, or checks that it belongs to the same manifest and version. Safe to call from several processes
/// at once.
status prepare_folder(const std::string& folder, const sweep_plan& plan);

/// The units without a result, longest first. A failed unit has a result, but `again` includes it. Reports damaged
/// lines on standard error and ignores them.
result<std::vector<std::uint32_t>> units_left(const std::string& folder, const sweep_plan& plan, bool again);

/// The place of a unit's row.
struct row_place {
  std::uint32_t file = 0;  ///< index into `found_results::files`
  bool failed = false;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};
struct found_results {
  std::vector<std::string> files;
  std::unordered_map<hash128, row_place, key_hash> rows;  ///< prefers a row without an error if a unit has two
};
result<found_results> find_results(const std::string& folder);

/// The contents of sweep.json and units.txt.
struct folder_plan {
  std::string version;
  std::string manifest_text;
  std::string mode;
  std::vector<std::pair<hash128, std::uint32_t>> units;  ///< key and trace
  std::vector<std::string> traces;
};
result<folder_plan> read_folder_plan(const std::string& folder);

/// Writes a temporary file in the same folder and renames it: all or nothing.
status write_whole(const std::string& path, const std::function<bool(std::FILE*)>& write);

}  // namespace gpumem::bench::sweep
