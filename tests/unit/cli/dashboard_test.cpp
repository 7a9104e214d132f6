// share/grafana/gpumem.json: it is a dashboard, and it asks only for metrics and labels that the exporter has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "metrics.hpp"
#include "metrics_text.hpp"

namespace gpumem::cli {
namespace {

using json = nlohmann::json;
using names = std::set<std::string>;

struct query_names {
  names metrics;
  names labels;
};

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == ':'; }

/// The metrics and labels of a PromQL expression: names that are neither functions, keywords nor in quotes.
class query_reader {
 public:
  explicit query_reader(std::string_view text) : text_{text} {}

  query_names read() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        skip_text();
      } else if (c == '[') {
        at_ = std::min(text_.find(']', at_), text_.size() - 1) + 1;
      } else if (c == '{') {
        read_labels('}');
      } else if (is_name(c)) {
        read_word();
      } else {
        ++at_;
      }
    }
    return std::move(found_);
  }

 private:
  std::string take_word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return std::string{text_.substr(begin, at_ - begin)};
  }
  void skip_text() { at_ = std::min(text_.find('"', at_ + 1), text_.size() - 1) + 1; }
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  void read_labels(char end) {
    for (++at_; at_ < text_.size() && text_[at_] != end;) {
      if (text_[at_] == '"') {
        skip_text();
      } else if (is_name(text_[at_])) {
        found_.labels.insert(take_word());
      } else {
        ++at_;
      }
    }
    ++at_;
  }
  void read_word() {
    static const names grouping{"by", "without", "on", "ignoring", "group_left", "group_right"};
    static const names keywords{"and", "or", "unless", "bool", "offset"};
    const bool number = std::isdigit(static_cast<unsigned char>(text_[at_])) != 0;
    const std::string word = take_word();
    skip_spaces();
    const bool opens = at_ < text_.size() && text_[at_] == '(';
    if (grouping.count(word) > 0 && opens) return read_labels(')');
    const std::string_view next = text_.substr(std::min(at_, text_.size()));
    const bool groups = next.starts_with("by ") || next.starts_with("by(") || next.starts_with("without");
    if (!number && !opens && !groups && keywords.count(word) == 0) found_.metrics.insert(word);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  query_names found_;
};

/// The labels between `{{` and `}}` of a legend.
names labels_of_legend(const std::string& legend) {
  names out;
  for (std::size_t at = legend.find("{{"); at != std::string::npos; at = legend.find("{{", at + 2)) {
    out.insert(legend.substr(at + 2, legend.find("}}", at) - at - 2));
  }
  return out;
}

/// Labels by metric, as exported for a machine that has every figure. Prometheus adds `instance` and `job`.
std::map<std::string, names> exported() {
  std::map<std::string, names> out;
  for (const prometheus::MetricFamily& family : metric_families(full_look())) {
    names& labels = out[family.name];
    labels.insert({"instance", "job"});
    for (const prometheus::ClientMetric& sample : family.metric) {
      for (const auto& label : sample.label) labels.insert(label.name);
    }
  }
  return out;
}

void expect_exported(const query_names& asked, const std::string& expression) {
  static const std::map<std::string, names> known = exported();
  EXPECT_FALSE(asked.metrics.empty()) << expression;
  for (const std::string& metric : asked.metrics) {
    const auto found = known.find(metric);
    ASSERT_NE(found, known.end()) << metric << " in " << expression;
    for (const std::string& label : asked.labels) {
      EXPECT_EQ(found->second.count(label), 1U) << "label " << label << " of " << metric << " in " << expression;
    }
  }
}

json dashboard() {
  std::ifstream file{"share/grafana/gpumem.json"};
  return json::parse(file, nullptr, false);
}

TEST(Dashboard, TheTestReadsQueriesAsPrometheusDoes) {
  const query_names got =
      query_reader{R"(sum by (a, b) (rate(m_total{x="y {z}",w!~"v"}[5m])) / on (c) n or vector(0) > 1e3)"}.read();
  EXPECT_EQ(got.metrics, (names{"m_total", "n"}));
  EXPECT_EQ(got.labels, (names{"a", "b", "c", "w", "x"}));
}

TEST(Dashboard, IsADashboardWithPanelsThatDoNotOverlap) {
  const json all = dashboard();
  ASSERT_TRUE(all.is_object());
  EXPECT_EQ(all["title"], "gpumem");
  EXPECT_GE(all["schemaVersion"], 36);
  std::set<int> ids;
  std::set<std::pair<int, int>> cells;
  for (const json& panel : all["panels"]) {
    EXPECT_TRUE(ids.insert(panel["id"].get<int>()).second) << panel["title"];
    EXPECT_NE(panel["title"], "");
    const json& place = panel["gridPos"];
    const int right = place["x"].get<int>() + place["w"].get<int>();
    EXPECT_LE(right, 24) << panel["title"];
    for (int x = place["x"]; x < right; ++x) {
      for (int y = place["y"]; y < place["y"].get<int>() + place["h"].get<int>(); ++y) {
        EXPECT_TRUE(cells.emplace(x, y).second) << panel["title"];
      }
    }
  }
  EXPECT_GE(ids.size(), 10U);
}

TEST(Dashboard, QueriesOnlyMetricsOfTheExporter) {
  const json all = dashboard();
  ASSERT_TRUE(all.is_object());
  std::size_t asked = 0;
  names shown;
  for (const json& panel : all["panels"]) {
    if (panel["type"] == "row") continue;
    ASSERT_FALSE(panel["targets"].empty()) << panel["title"];
    for (const json& target : panel["targets"]) {
      const std::string expression = target["expr"];
      query_names names_of_query = query_reader{expression}.read();
      names_of_query.labels.merge(labels_of_legend(target["legendFormat"]));
      expect_exported(names_of_query, expression);
      shown.merge(names_of_query.metrics);
      ++asked;
    }
  }
  EXPECT_GE(asked, 20U);
  for (const auto& [metric, labels] : exported()) {
    if (metric == "gpumem_up" || metric == "gpumem_build_info") continue;
    EXPECT_EQ(shown.count(metric), 1U) << metric;
  }
}

TEST(Dashboard, ItsVariablesAreLabelsOfTheExporter) {
  std::size_t variables = 0;
  const json all = dashboard();
  ASSERT_TRUE(all.is_object());
  for (const json& variable : all["templating"]["list"]) {
    if (variable["type"] != "query") continue;
    const std::string text = variable["query"]["query"];
    const std::size_t comma = text.rfind(", ");
    const std::string begin = "label_values(";
    ASSERT_TRUE(text.starts_with(begin) && text.ends_with(")") && comma != std::string::npos) << text;
    query_names got = query_reader{std::string_view{text}.substr(begin.size(), comma - begin.size())}.read();
    got.labels.insert(text.substr(comma + 2, text.size() - comma - 3));
    expect_exported(got, text);
    ++variables;
  }
  EXPECT_EQ(variables, 2U);
}

}  // namespace
}  // namespace gpumem::cli
