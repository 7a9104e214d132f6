/// Compares the table of entry points with the installed cuda.h: finds functions that allocate and have no row, and
/// rows whose function does not exist.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace gpumem {
namespace {

/// Name parts of functions that may allocate, or that say where others allocate. Wider than necessary: a row may say
/// that its function does not.
const std::regex may_allocate{
    "Alloc|Create|Load|Import|Open|Retain|Instantiate|Register|Reserve|Add.*Node|Mapped|Upload|SetLimit|Prefetch|"
    "Launch|MapArray|Enable|SetMemPool"};
/// Functions that free something and contain such a name part.
const std::regex takes_back{"Free|Unregister|Unload|Disable|Release"};

std::string header() {
  std::ifstream file{GPUMEM_CUDA_H};
  std::string text{std::istreambuf_iterator<char>{file}, {}};
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = std::min(text.find("/*", at), text.size());
    out += text.substr(at, begin - at);
    if (begin == text.size()) break;
    const std::size_t end = text.find("*/", begin);
    at = end == std::string::npos ? text.size() : end + 2;
  }
  return out;
}

std::set<std::string> declared() {
  std::set<std::string> out;
  const std::string text = header();
  const std::regex declaration{"CUDAAPI\\s+(cu[A-Z]\\w*)\\s*\\("};
  for (std::sregex_iterator it{text.begin(), text.end(), declaration}, end; it != end; ++it) out.insert((*it)[1]);
  return out;
}

/// `cuMemPrefetchAsync_v2_ptsz` is a variant of cuMemPrefetchAsync.
std::string base_of(const std::string& name) {
  return std::regex_replace(name, std::regex{"(_v\\d+)?(_ptsz|_ptds)?$"}, "");
}

struct rows {
  std::set<std::string> names;
  std::map<std::string, std::string> why_of;  // by symbol
};
rows table() {
  rows out;
#define SERVED(function, name, version, symbol, streams, why) \
  out.names.insert(#name);                                    \
  out.why_of[#symbol] = why;
#define COUNTED SERVED
#define MEASURED SERVED
#define FORWARDED(symbol, why) \
  out.names.insert(#symbol);   \
  out.why_of[#symbol] = why;
#include "entry_points.def"
  return out;
}

std::set<std::string> exported_names() {
  return {
#define NAME(name) #name,
#include "driver_names.def"
#undef NAME
  };
}

TEST(EntryPoints, EveryFunctionThatMayAllocateHasARow) {
  const std::set<std::string> known = table().names;
  const std::set<std::string> all = declared();
  ASSERT_GT(all.size(), 400U) << GPUMEM_CUDA_H << " was not understood";
  for (const std::string& name : all) {
    if (!std::regex_search(name, may_allocate)) continue;
    if (std::regex_search(name, takes_back) && name.find("Alloc") == std::string::npos) continue;
    EXPECT_TRUE(known.contains(base_of(name))) << name << " is in cuda.h and has no row in entry_points.def";
  }
}

TEST(EntryPoints, ANameThatTheHeaderGainsIsNoticed) {
  const std::set<std::string> known = table().names;
  for (const std::string name : {"cuMemAllocNumaAsync", "cuTensorMemoryCreate", "cuGraphAddPoolNode_v2"}) {
    EXPECT_TRUE(std::regex_search(name, may_allocate) && !known.contains(base_of(name))) << name;
  }
}

TEST(EntryPoints, EveryRowSaysWhy) {
  for (const auto& [symbol, why] : table().why_of) EXPECT_FALSE(why.empty()) << symbol;
}

TEST(EntryPoints, EverySymbolAndEveryDeclaredNameIsForwarded) {
  const std::set<std::string> exported = exported_names();
  for (const auto& [symbol, why] : table().why_of) EXPECT_TRUE(exported.contains(symbol)) << symbol;
  for (const std::string& name : declared()) {
    if (name == "cuGetProcAddress_v2_ptsz") continue;  // inline in the header
    EXPECT_TRUE(exported.contains(name)) << name << " is in cuda.h and not in driver_names.def";
  }
}

}  // namespace
}  // namespace gpumem
