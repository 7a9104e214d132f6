#include "metrics_text.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <sstream>

namespace gpumem::cli {
namespace {

bool has(const metric_sample& sample, const std::string& name, const std::map<std::string, std::string>& labels) {
  return sample.name == name && std::all_of(labels.begin(), labels.end(), [&](const auto& each) {
           const auto found = sample.labels.find(each.first);
           return found != sample.labels.end() && found->second == each.second;
         });
}

std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      out.push_back(text[i] == 'n' ? '\n' : text[i]);
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

}  // namespace

std::size_t metrics_text::count(const std::string& name, const std::map<std::string, std::string>& labels) const {
  return static_cast<std::size_t>(std::count_if(samples.begin(), samples.end(),
                                                [&](const metric_sample& each) { return has(each, name, labels); }));
}

double metrics_text::value_of(const std::string& name, const std::map<std::string, std::string>& labels) const {
  EXPECT_EQ(count(name, labels), 1U) << name;
  for (const metric_sample& each : samples) {
    if (has(each, name, labels)) return each.value;
  }
  return -1;
}

metrics_text parse_metrics(const std::string& text) {
  const std::regex comment{R"(# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*))"};
  const std::regex sample{R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(.*)\})? ([-+0-9.eE]+|Na[Nn]|\+Inf))re"};
  const std::regex label{R"re(([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?)re"};
  metrics_text out;
  EXPECT_TRUE(text.ends_with('\n'));
  std::istringstream lines{text};
  for (std::string line; std::getline(lines, line);) {
    std::smatch parts;
    if (std::regex_match(line, parts, comment)) {
      if (parts[1] == "HELP") out.described.insert(parts[2]);
      if (parts[1] == "TYPE") out.types[parts[2]] = parts[3];
      continue;
    }
    if (!std::regex_match(line, parts, sample)) {
      ADD_FAILURE() << "not a line of the format: " << line;
      return {};
    }
    metric_sample& made = out.samples.emplace_back();
    made.name = parts[1];
    made.value = std::stod(parts[4]);
    const std::string labels = parts[3];
    for (std::sregex_iterator each{labels.begin(), labels.end(), label}, end; each != end; ++each) {
      made.labels[(*each)[1]] = unescaped((*each)[2]);
    }
  }
  return out;
}

nlohmann::json full_look() {
  using json = nlohmann::json;
  const json instance{{"uuid", "MIG-a"}, {"total_bytes", 4000}, {"used_bytes", 1000}, {"free_bytes", 2900}};
  const json process{{"pid", 7}, {"user", "ada"}, {"command", "train"}, {"used_bytes", 256}};
  const json card{{"index", 0},           {"name", "H100"},
                  {"uuid", "GPU-a"},      {"pci_bus_id", "00000000:01:00.0"},
                  {"total_bytes", 24000}, {"used_bytes", 9000},
                  {"free_bytes", 14500},  {"memory_source", "nvml"},
                  {"busy_percent", 70},   {"temperature_c", 61},
                  {"power_mw", 250'500},  {"power_limit_mw", 300'000},
                  {"mig", true},          {"instances", json::array({instance})},
                  {"leases", 2},          {"processes", json::array({process})}};
  const json pool{{"ordinal", 3},
                  {"name", "eval"},
                  {"uuid", "GPU-a"},
                  {"policy", "growth"},
                  {"limit_bytes", 20000},
                  {"live_bytes", 5000},
                  {"reserved_bytes", 8000},
                  {"free_bytes", 3000},
                  {"largest_free_bytes", 1500},
                  {"external_fragmentation", 0.5},
                  {"allocations", 12345},
                  {"out_of_memory", 6}};
  const json served{{"pid", 7},         {"user", "ada"},  {"command", "train --token=secret"}, {"executable", "train"},
                    {"answered", true}, {"group", "lab"}, {"devices", json::array({pool})}};
  return {{"schema", 1},
          {"time_s", 1},
          {"devices", json::array({card})},
          {"problem", ""},
          {"served", json::array({served})}};
}

}  // namespace gpumem::cli
