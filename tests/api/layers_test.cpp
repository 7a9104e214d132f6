/// The layering rule, checked on the #include lines: no layer includes upwards or sideways.
///
/// The build enforces most of it, because a layer has no other include paths. This test also covers the public headers,
/// which share one path, and names the line.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tree.hpp"

namespace gpumem {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> sources{".cpp", ".hpp", ".def", ".h"};

const std::map<std::string, fs::path> folder_of_layer{
    {"base", "src/base"},       {"heap", "src/heap"},         {"solver", "src/plan/solver"}, {"plan", "src/plan"},
    {"device", "src/device"},   {"cards", "src/cards"},       {"group", "src/group"},        {"policies", "policies"},
    {"streams", "src/streams"}, {"paging", "src/paging"},     {"cache", "src/cache"},        {"pool", "src/pool"},
    {"front", "src/front"},     {"adapters", "src/adapters"},
};

/// The layers that each layer may include, itself among them.
const std::map<std::string, std::set<std::string>> allowed{
    {"base", {"base"}},
    {"heap", {"base", "heap"}},
    {"solver", {"base", "solver"}},
    {"plan", {"base", "heap", "solver", "plan"}},
    {"device", {"base", "device"}},
    {"cards", {"base", "device", "cards"}},
    {"group", {"base", "group"}},
    {"policies", {"base", "policies"}},
    {"streams", {"base", "device", "heap", "streams"}},
    {"paging", {"base", "policies", "device", "heap", "paging"}},
    {"cache", {"base", "device", "cache"}},
    {"pool", {"base", "plan", "device", "cards", "group", "policies", "heap", "streams", "paging", "cache", "pool"}},
    {"front", {"base", "solver", "plan", "device", "cards", "group", "policies", "pool", "front"}},
    {"adapters", {"base", "device", "cards", "group", "policies", "front", "adapters"}},
};

/// The layer that owns each public header.
const std::map<std::string, std::string> owner_of_public_header{
    {"gpumem/export.h", "base"},
    {"gpumem/status.hpp", "base"},
    {"gpumem/settings.hpp", "base"},
    {"gpumem/statistics.hpp", "base"},
    {"gpumem/device.hpp", "device"},
    {"gpumem/sim_device.hpp", "device"},
    {"gpumem/policy.hpp", "policies"},
    {"gpumem/policy_library.h", "policies"},
    {"gpumem/request.hpp", "device"},
    {"gpumem/segment_observer.hpp", "device"},
    {"gpumem/allocator.hpp", "front"},
    {"gpumem/cuda_device.hpp", "device"},
    {"gpumem/gpu_usage.hpp", "device"},
    {"gpumem/default_allocator.hpp", "front"},
    {"gpumem/pinned_device.hpp", "device"},
    {"gpumem/gpumem.h", "adapters"},
    {"gpumem/refusal.hpp", "adapters"},
    {"gpumem/adapters/buffer.hpp", "adapters"},
    {"gpumem/adapters/cuda_mr.hpp", "adapters"},
    {"gpumem/adapters/pmr.hpp", "adapters"},
    {"gpumem/adapters/rmm.hpp", "adapters"},
    {"gpumem/adapters/thrust.hpp", "adapters"},
};

/// Public headers that may include CUDA's runtime or a framework's headers.
const std::set<std::string> bridges{"gpumem/adapters/cuda_mr.hpp", "gpumem/adapters/rmm.hpp",
                                    "gpumem/adapters/thrust.hpp"};

/// Every header of the tree by the name it is included by, with its layer.
std::map<std::string, std::string> owners() {
  std::map<std::string, std::string> owner = owner_of_public_header;
  for (const auto& [layer, folder] : folder_of_layer) {
    for (const fs::path& file : tree::files(folder, {".hpp", ".def", ".h"})) {
      // A subfolder is a layer of its own (plan/solver) or belongs to its layer with an include path of its own.
      if (layer == "plan" && file.parent_path() != folder) continue;
      const fs::path name = file.filename();
      const auto [at, added] = owner.emplace(name.generic_string(), layer);
      EXPECT_TRUE(added) << file << ": " << at->second << " has a header of the same name, so an include is ambiguous";
    }
  }
  return owner;
}

void expect_only_allowed(const std::vector<fs::path>& files, const std::string& layer) {
  const auto owner = owners();
  const std::set<std::string>& may = allowed.at(layer);
  for (const fs::path& file : files) {
    for (const tree::include_line& line : tree::includes(file)) {
      const auto at = owner.find(line.included);
      if (at == owner.end()) {
        EXPECT_FALSE(line.quoted) << line.file.string() << ":" << line.number << ": \"" << line.included
                                  << "\" is no header of the layers; ours are included by their bare names";
        continue;
      }
      EXPECT_TRUE(may.contains(at->second)) << line.file.string() << ":" << line.number << ": " << layer << " includes "
                                            << line.included << ", which is " << at->second << "'s";
    }
  }
}

class layer : public testing::TestWithParam<std::string> {};

TEST_P(layer, includes_only_what_stands_below_it) {
  const std::vector<fs::path> files = tree::files(folder_of_layer.at(GetParam()), sources);
  ASSERT_FALSE(files.empty());
  expect_only_allowed(files, GetParam());
}

std::vector<std::string> layers() {
  std::vector<std::string> names;
  for (const auto& [name, folder] : folder_of_layer) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(every, layer, testing::ValuesIn(layers()),
                         [](const auto& instance) { return instance.param; });

/// Headers of the pool's room that the front may include; what they hold is the pool's interface.
const std::set<std::string> pool_for_front{"flight_record.hpp", "latest_hit.hpp", "pool.hpp", "pool_config.hpp",
                                           "pool_streams.hpp"};

TEST(front, includes_only_the_interface_of_the_pool) {
  const auto owner = owners();
  for (const fs::path& file : tree::files("src/front", sources)) {
    for (const tree::include_line& line : tree::includes(file)) {
      const auto found = owner.find(line.included);
      if (found == owner.end() || found->second != "pool") continue;
      EXPECT_TRUE(pool_for_front.contains(line.included))
          << file << ":" << line.number << " includes " << line.included;
    }
  }
}

/// The folders that a document lists from the top down, in `front   src/front/ ...` or `| `front/` | ...`, as layers.
std::vector<std::string> layers_listed_in(const char* document, const char* before, const std::string& after) {
  std::vector<std::string> listed;
  std::istringstream lines{tree::text(document)};
  bool begun = false;
  for (std::string line; std::getline(lines, line);) {
    begun = begun || line == before;
    if (begun && line == after && !listed.empty()) break;
    const std::size_t begin = line.find_first_of("abcdefghijklmnopqrstuvwxyz");
    if (!begun || begin == std::string::npos) continue;
    std::string word = line.substr(begin, line.find_first_not_of("abcdefghijklmnopqrstuvwxyz", begin) - begin);
    if (folder_of_layer.contains(word)) listed.push_back(std::move(word));
  }
  return listed;
}

/// `solver` is a folder of `plan`, and `adapters` stands beside the list or on top of it.
void expect_order_of_layers(const std::vector<std::string>& top_down, const char* document) {
  for (const auto& [name, folder] : folder_of_layer) {
    if (name == "solver" || name == "adapters") continue;
    const auto at = std::ranges::find(top_down, name);
    ASSERT_NE(at, top_down.end()) << document << " lists no " << name;
    for (const std::string& below : allowed.at(name)) {
      if (below == name || below == "solver") continue;
      EXPECT_NE(std::find(at, top_down.end(), below), top_down.end())
          << document << " lists " << below << " above " << name << ", which includes it";
    }
  }
}

/// Types that a room's headers define at namespace scope.
std::set<std::string> types_of(const std::string& room, const std::set<std::string>& without_headers) {
  const std::regex definition{R"(^(?:class|struct|enum class)\s+(?:\w+\([^)]*\)\s+)?(\w+)[^;()]*\{)"};
  std::set<std::string> types;
  for (const fs::path& file : tree::files(folder_of_layer.at(room), {".hpp"})) {
    if (without_headers.contains(file.filename())) continue;
    std::istringstream text{tree::text(file)};
    std::smatch found;
    for (std::string line; std::getline(text, line);) {
      if (std::regex_search(line, found, definition)) types.insert(found[1]);
    }
  }
  return types;
}

/// The front holds pools and calls them. What lies below, and the pool's own parts, are not its business.
TEST(front, names_no_type_of_the_rooms_below_the_pool) {
  std::set<std::string> hidden;
  // Plain values that the pool's functions take and return.
  const std::set<std::string> values{"capture_effect.hpp", "event_history.hpp"};
  for (const char* room : {"heap", "streams", "paging", "cache"}) hidden.merge(types_of(room, values));
  hidden.merge(types_of("pool", pool_for_front));
  ASSERT_GT(hidden.size(), 30U);
  ASSERT_TRUE(hidden.contains("arena") && hidden.contains("stream_order") && hidden.contains("block_cache"));
  const std::regex not_code{"//[^\\n]*|\"[^\"\\n]*\""};
  // A name before a reference, a scope, an argument list or another name; not a member's.
  const std::regex word{R"((\.|->)?\b[A-Za-z_]\w*(?=\s*(?:[&*<>{]|::)|\s+[A-Za-z_]))"};
  for (const fs::path& file : tree::files("src/front", sources)) {
    const std::string code = std::regex_replace(tree::text(file), not_code, "");
    for (auto at = std::sregex_iterator{code.begin(), code.end(), word}; at != std::sregex_iterator{}; ++at) {
      EXPECT_FALSE(hidden.contains(at->str())) << file << " names " << at->str();
    }
  }
}

TEST(documents, list_the_layers_in_the_order_of_their_includes) {
  expect_order_of_layers(layers_listed_in("docs/architecture.md", "## Layers", "```"), "docs/architecture.md");
  expect_order_of_layers(layers_listed_in("src/README.md", "| layer | its types | what it knows |", ""),
                         "src/README.md");
}

TEST(public_headers, include_only_what_stands_below_them) {
  for (const fs::path& file : tree::files("include/gpumem", sources)) {
    const auto at = owner_of_public_header.find(fs::relative(file, "include").generic_string());
    ASSERT_NE(at, owner_of_public_header.end()) << file << " has no layer: add it to owner_of_public_header";
    expect_only_allowed({file}, at->second);
    for (const tree::include_line& line : tree::includes(file)) {
      EXPECT_TRUE(!line.quoted || line.included.starts_with("gpumem/"))
          << line.file.string() << ":" << line.number << ": a public header includes " << line.included
          << ", which is not installed";
    }
  }
}

TEST(public_headers, need_neither_cuda_nor_fmt_nor_iostream) {
  const std::vector<std::string> refused{"cuda",     "cupti",    "nv/",  "nvml", "fmt/", "thrust",
                                         "iostream", "nlohmann", "CLI/", "zlib", "rmm/"};
  for (const fs::path& file : tree::files("include/gpumem", sources)) {
    if (bridges.contains(fs::relative(file, "include").generic_string())) continue;
    for (const tree::include_line& line : tree::includes(file)) {
      for (const std::string& prefix : refused) {
        EXPECT_FALSE(line.included.starts_with(prefix))
            << line.file.string() << ":" << line.number << " includes " << line.included;
      }
    }
  }
}

TEST(examples, include_only_public_headers) {
  for (const fs::path& file : tree::files("examples", sources)) {
    for (const tree::include_line& line : tree::includes(file)) {
      // An example of several files includes its own, from its folder or the folder of its name.
      const bool its_own = fs::exists(file.parent_path() / line.included);
      EXPECT_TRUE(!line.quoted || line.included.starts_with("gpumem/") || its_own)
          << line.file.string() << ":" << line.number << " includes " << line.included;
    }
  }
}

}  // namespace
}  // namespace gpumem
