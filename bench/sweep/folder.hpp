/// A sweep's output folder: which sweep it is of, which units that has, and what is done.
///
///   sweep.json           manifest and version; a folder with another one is refused
///   units.txt            key and trace of every unit, in the order of the merged results
///   results-LABEL.jsonl  one line a unit (result_file.hpp), one file a writer
///   times-LABEL.jsonl    what was measured: seconds, memory; never part of the merged results
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpumem/status.hpp"
#include "plan.hpp"

namespace gpumem::bench::sweep {

struct key_hash {
  std::size_t operator()(const hash128& key) const noexcept { return key[0] ^ key[1]; }
};

/// Creates the folder, or checks that what is there is of the same manifest and version. Several may do so at once.
status prepare_folder(const std::string& folder, const sweep_plan& plan);

/// Which of the plan's units have no result yet, longest first. A unit that failed has one; with `again` it is run
/// again. Damaged lines are told on standard error and count for nothing.
result<std::vector<std::uint32_t>> units_left(const std::string& folder, const sweep_plan& plan, bool again);

/// Where a unit's row is.
struct row_place {
  std::uint32_t file = 0;  ///< of `found_results::files`
  bool failed = false;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};
struct found_results {
  std::vector<std::string> files;
  std::unordered_map<hash128, row_place, key_hash> rows;  ///< of two for one unit, one that is no error
};
result<found_results> find_results(const std::string& folder);

/// What sweep.json and units.txt say.
struct folder_plan {
  std::string version;
  std::string manifest_text;
  std::string mode;
  std::vector<std::pair<hash128, std::uint32_t>> units;  ///< key and trace
  std::vector<std::string> traces;
};
result<folder_plan> read_folder_plan(const std::string& folder);

/// Writes to a file beside it, which then takes its name: whole or not at all.
status write_whole(const std::string& path, const std::function<bool(std::FILE*)>& write);

}  // namespace gpumem::bench::sweep
