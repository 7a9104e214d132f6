/// The report as a reader has it: opened in headless Chromium, looked at with its own script's eyes, keys pressed.
///
/// GPUMEM_PAGE_PICTURES=FOLDER keeps screenshots of the pages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>

#include "browser.hpp"

namespace gpumem::page_test {
namespace {

using json = nlohmann::json;
namespace fs = std::filesystem;

/// A report made with the program, when it is first asked for.
class made_report {
 public:
  explicit made_report(const std::string& words)
      : path_{fs::temp_directory_path() / ("gpumem_page_" + std::to_string(::getpid()))} {
    path_ += "_" + std::to_string(++count_) + ".html";
    const std::string command =
        "env -i PATH=\"$PATH\" '" GPUMEM_BENCH_PROGRAM "' " + words + " --html '" + path_.string() + "' >/dev/null";
    const int code = std::system(command.c_str());
    if (!WIFEXITED(code) || WEXITSTATUS(code) != 0) throw browser_failed{command + " failed"};
  }
  ~made_report() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  made_report(const made_report&) = delete;
  made_report& operator=(const made_report&) = delete;
  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  static inline int count_ = 0;
  fs::path path_;
};

/// Widths of a phone, a laptop and a large screen.
struct screen {
  const char* name;
  int width;
  int height;
  [[nodiscard]] bool phone() const { return width < 500; }
};
constexpr std::array<screen, 3> screens{{{"phone", 390, 844}, {"laptop", 1366, 768}, {"large", 1920, 1080}}};

const std::string policies = " --policy growth --policy grab_all --policy caching --policy 'hard_cap,limit=1GiB'";

const fs::path& compared() {
  // The last row runs out of memory, and its column says so.
  static const made_report made{"compare --trace bench/traces/serve.csv.gz --workload epochs,ops=40000" + policies +
                                " --policy growth,limit=60MiB"};
  return made.path();
}

class page : public testing::Test {
 protected:
  void SetUp() override {
    if (!browser_program()) GTEST_SKIP() << "no Chromium on PATH (package chromium): the report cannot be looked at";
    browser_.emplace(*browser_program());
    browser_->resize(1280, 900);
  }

  void TearDown() override {
    if (!browser_) return;
    EXPECT_THAT(browser_->complaints(), testing::IsEmpty());
    for (const std::string& each : browser_->requests()) EXPECT_THAT(each, testing::MatchesRegex("(file|data):.*"));
  }

  void keep_picture(const std::string& name) {
    const char* folder = std::getenv("GPUMEM_PAGE_PICTURES");
    if (folder != nullptr) browser_->save_picture(fs::path{folder} / (name + ".png"));
  }

  json value(const std::string& expression) { return browser_->evaluate(expression); }

  /// The elements beyond the window's width, except those within an element that scrolls.
  json too_wide() {
    return value(
        R"([...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll") && !e.closest("[hidden]") &&
        e.getClientRects().length > 0 && (e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1))
        .map((e) => e.tagName + "." + e.className + " " + e.textContent.slice(0, 40)))");
  }

  /// Texts within charts, controls and facts that cover each other. Only the part of a text that lies within its
  /// scrolling box counts.
  json overlapping() {
    return value(R"((() => {
      const seen = (e) => {
        const own = e.getBoundingClientRect(), frame = e.closest(".scroll")?.getBoundingClientRect() ?? own;
        return {left: Math.max(own.left, frame.left), right: Math.min(own.right, frame.right),
                top: Math.max(own.top, frame.top), bottom: Math.min(own.bottom, frame.bottom)};
      };
      const boxes = [...document.querySelectorAll("h1, h2, h3, button, select, label, dt, dd, figcaption, output, .legend li, th, " +
          ".dygraph-axis-label, .dygraph-label")]
        .filter((e) => e.textContent.trim() && e.getClientRects().length > 0)
        .map((e) => [e, seen(e)]);
      const out = [];
      for (let i = 0; i < boxes.length; ++i) for (let j = i + 1; j < boxes.length; ++j) {
        const [a, p] = boxes[i], [b, q] = boxes[j];
        if (a.contains(b) || b.contains(a)) continue;
        const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
        const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
        if (wide > 2 && high > 4) out.push(a.textContent.trim().slice(0, 30) + " / " + b.textContent.trim().slice(0, 30));
      }
      return out;
    })())");
  }

  std::optional<browser> browser_;
};

TEST_F(page, every_chart_has_its_data_and_keeps_the_peaks) {
  browser_->open(compared());
  EXPECT_EQ(value("document.querySelectorAll('#trace option').length"), 2);
  for (const char* trace : {"serve", "epochs,ops=40000"}) {
    value(std::string{"(() => { const s = document.getElementById('trace'); s.value = '"} + trace +
          "'; s.dispatchEvent(new Event('change')); })()");
    const json charts = value(R"(report.charts().map((c) => ({points: c.numRows(), labels: c.getLabels(),
        live: Math.max(...Array.from({length: c.numRows()}, (_, i) => c.getValue(i, 1))),
        unit: c.unit_bytes, drawn: c.graphDiv.querySelectorAll("canvas").length})))");
    const json rows = value(std::string{"report.data.rows.filter((r) => r.trace === '"} + trace +
                            "').map((r) => ({live: r.peak_live_bytes, policy: r.policy}))");
    ASSERT_EQ(charts.size(), 5U) << trace;
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_GT(charts[i]["points"], 200) << trace << rows[i];
      EXPECT_LT(charts[i]["points"], 3000) << trace << rows[i];
      EXPECT_GE(charts[i]["drawn"], 2) << trace << rows[i];
      const auto unit = charts[i]["unit"].get<double>();
      EXPECT_NEAR(charts[i]["live"].get<double>() * unit, rows[i]["live"].get<double>(), 1) << trace << rows[i];
    }
  }
  keep_picture("compare_desktop_light");
}

TEST_F(page, the_slider_moves_the_map_by_keyboard_too) {
  browser_->open(compared());
  const std::string seen =
      R"(({op: Number(document.getElementById("map").dataset.op), at: document.getElementById("time").value,
      text: document.getElementById("facts").textContent, drawn: document.getElementById("map").toDataURL()}))";
  value("document.getElementById('time').focus()");
  browser_->press("Home");
  const json first = value(seen);
  EXPECT_EQ(first["op"], 0);
  for (int i = 0; i < 40; ++i) browser_->press("ArrowRight");
  const json later = value(seen);
  EXPECT_EQ(later["at"], "40");
  EXPECT_GT(later["op"], first["op"]);
  EXPECT_NE(later["drawn"], first["drawn"]);
  EXPECT_NE(later["text"], first["text"]);
  browser_->press("End");
  EXPECT_EQ(value("Number(document.getElementById('map').dataset.op) + 1"), value("report.data.rows[0].history.ops"));
  EXPECT_THAT(value("document.getElementById('time').getAttribute('aria-valuetext')").get<std::string>(),
              testing::HasSubstr("reserved 122 MiB"));
}

TEST_F(page, every_policy_has_a_map) {
  browser_->open(compared());
  const json drawn = value(R"((() => { const s = document.getElementById("policy"), out = [];
    for (const option of s.options) { s.value = option.value; s.dispatchEvent(new Event("change"));
      out.push(document.getElementById("map").toDataURL()); } return out; })())");
  ASSERT_EQ(drawn.size(), 5U);
  const std::set<std::string> unlike = drawn;
  EXPECT_EQ(unlike.size(), 4U) << "growth, grab_all, caching and the small limit differ, hard_cap is as growth";
}

TEST_F(page, the_table_sorts_and_says_so) {
  browser_->open(compared());
  const auto column = [this] {
    return value("[...document.querySelectorAll('#table tbody tr')].map((r) => r.cells[4].textContent)")
        .get<std::vector<std::string>>();
  };
  value("document.querySelectorAll('#table th button')[4].focus()");
  browser_->press("Enter");
  std::vector<std::string> ascending = column();
  EXPECT_EQ(ascending.size(), 10U);
  EXPECT_TRUE(std::is_sorted(ascending.begin(), ascending.end()));
  EXPECT_EQ(value("document.querySelectorAll('#table th')[4].getAttribute('aria-sort')"), "ascending");
  browser_->press("Enter");
  std::vector<std::string> descending = column();
  EXPECT_TRUE(std::is_sorted(descending.rbegin(), descending.rend()));
  EXPECT_NE(ascending, descending);
}

TEST_F(page, fits_every_screen_in_light_and_dark) {
  for (const screen& on : screens) {
    for (const bool dark : {false, true}) {
      const std::string name = std::string{"compare_"} + on.name + (dark ? "_dark" : "_light");
      browser_->resize(on.width, on.height, on.phone());
      browser_->prefer_dark(dark);
      browser_->open(compared());
      EXPECT_THAT(too_wide(), testing::IsEmpty()) << name;
      EXPECT_THAT(overlapping(), testing::IsEmpty()) << name;
      EXPECT_EQ(value("document.documentElement.dataset.theme"), dark ? "dark" : "light");
      const std::string ground = value("getComputedStyle(document.body).backgroundColor");
      EXPECT_EQ(ground, dark ? "rgb(19, 22, 25)" : "rgb(255, 255, 255)") << name;
      keep_picture(name);
    }
  }
}

TEST_F(page, every_figure_is_seen_without_scrolling_sideways) {
  for (const screen& on : screens) {
    browser_->resize(on.width, on.height, on.phone());
    browser_->open(compared());
    EXPECT_LE(value("document.documentElement.scrollWidth"), on.width) << on.name;
    const json cut = value(R"([...document.querySelectorAll("#table td, #table th")].filter((e) => {
        const own = e.getBoundingClientRect(), frame = e.closest(".scroll").getBoundingClientRect();
        return e.scrollWidth > e.clientWidth + 1 || own.left < frame.left - 1 || own.right > frame.right + 1; })
        .map((e) => e.textContent))");
    EXPECT_THAT(cut, testing::IsEmpty()) << on.name;
    // The row that runs out of memory says so within the window.
    EXPECT_GE(value(R"([...document.querySelectorAll("#table td:last-child")].filter((e) =>
        / at operation \d+/.test(e.textContent) && e.getBoundingClientRect().right <= innerWidth).length)"),
              1)
        << on.name;
  }
}

TEST_F(page, a_pointer_on_a_chart_reads_its_values) {
  for (const screen& on : screens) {
    for (const bool dark : {false, true}) {
      browser_->resize(on.width, on.height, on.phone());
      browser_->prefer_dark(dark);
      browser_->open(compared());
      const json places = value(R"(report.charts().map((c) => { c.graphDiv.scrollIntoView({block: "center"});
          const area = c.getArea(), box = c.graphDiv.getBoundingClientRect();
          return {x: box.left + area.x + area.w / 2, y: box.top + area.y + area.h / 2, top: scrollY}; }))");
      ASSERT_EQ(places.size(), 5U);
      for (std::size_t i = 0; i < places.size(); ++i) {
        const std::string chart = "report.charts()[" + std::to_string(i) + "]";
        const std::string reading = "document.querySelectorAll('.reading')[" + std::to_string(i) + "].textContent";
        value("scrollTo(0, " + places[i]["top"].dump() + ")");
        const std::string before = value(reading);
        EXPECT_THAT(before, testing::StartsWith("Peak live")) << on.name;
        if (on.phone()) {
          browser_->tap(places[i]["x"], places[i]["y"]);
        } else {
          browser_->move_pointer(places[i]["x"], places[i]["y"]);
        }
        const std::string at = value("String(" + chart + ".getSelection())");
        const std::string expected =
            value("(() => { const c = " + chart + ", row = c.getSelection(), text = " + reading +
                  "; const n = text.match(/^Operation ([\\d,]+): live ([\\d.]+) (\\w+), reserved/);"
                  "return n && Number(n[1].replaceAll(',', '')) === c.getValue(row, 0) ? 'values' : text; })()");
        EXPECT_EQ(expected, "values") << on.name << " chart " << i << " at " << at;
        // A screenful in the middle of the chart is about half of the operations.
        const double share = value(chart + ".getValue(" + chart + ".getSelection(), 0) / " + chart + ".getValue(" +
                                   chart + ".numRows() - 1, 0)");
        EXPECT_NEAR(share, 0.5, 0.1) << on.name;
      }
      if (!on.phone()) {
        keep_picture(std::string{"hover_"} + on.name + (dark ? "_dark" : "_light"));
        browser_->move_pointer(2, 2);
        EXPECT_THAT(value("document.querySelectorAll('.reading')[4].textContent").get<std::string>(),
                    testing::StartsWith("Peak live"));
      }
      EXPECT_THAT(browser_->complaints(), testing::IsEmpty());
    }
  }
}

TEST_F(page, the_button_changes_light_and_dark) {
  browser_->open(compared());
  value("document.getElementById('theme').click()");
  EXPECT_EQ(value("document.documentElement.dataset.theme"), "dark");
  EXPECT_EQ(value("report.charts()[0].getOption('colors')[0]"), "#5cb3f2");
}

TEST_F(page, two_hundred_thousand_operations_open_within_three_seconds) {
  const made_report report{"compare --workload random,ops=200000" + policies};
  browser_->open(report.path());
  const double opened_ms = value("Number(document.documentElement.dataset.ready)").get<double>();
  EXPECT_GE(value("report.data.rows[0].history.ops").get<int>(), 200'000);
  EXPECT_LT(opened_ms, 3000);
  RecordProperty("opened_ms", static_cast<int>(opened_ms));
  std::printf("200,000 operations, 4 policies: opened in %.0f ms, %ju bytes\n", opened_ms,
              static_cast<std::uintmax_t>(fs::file_size(report.path())));
}

TEST_F(page, claims_stand_with_their_verdicts_and_sources_on_every_screen) {
  // Made by bench_test's test of all claims, which ctest runs before.
  ASSERT_TRUE(fs::exists(GPUMEM_TEST_CLAIMS_PAGE)) << "run this test by ctest";
  for (const screen& on : screens) {
    browser_->resize(on.width, on.height, on.phone());
    browser_->open(GPUMEM_TEST_CLAIMS_PAGE);
    EXPECT_EQ(value("document.querySelectorAll('.claim').length"), value("report.data.claims.length"));
    EXPECT_GE(value("document.querySelectorAll('.verdict').length"), 14);
    EXPECT_EQ(value("[...document.querySelectorAll('.verdict')].filter((v) => !['holds', 'does not hold', "
                    "'depends'].includes(v.textContent)).length"),
              0);
    EXPECT_GE(value("document.querySelectorAll('.claim a[href^=\"https://\"]').length"), 15);
    EXPECT_THAT(value("document.body.innerText").get<std::string>(), testing::Not(testing::HasSubstr("](http")));
    keep_picture(std::string{"claims_"} + on.name);
    value("document.querySelectorAll('details').forEach((d) => { d.open = true; })");
    EXPECT_GT(value("document.querySelectorAll('.claim td').length"), 100);
    EXPECT_THAT(too_wide(), testing::IsEmpty());
    EXPECT_THAT(overlapping(), testing::IsEmpty());
  }
}

TEST_F(page, keeps_the_licence_of_its_chart_library) {
  browser_->open(compared());
  EXPECT_THAT(value("document.body.textContent").get<std::string>(),
              testing::AllOf(testing::HasSubstr("Dan Vanderkam"), testing::HasSubstr("Permission is hereby granted")));
}

}  // namespace
}  // namespace gpumem::page_test
