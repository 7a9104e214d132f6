// The view of `gpumem top` and the effect of its keys, without a terminal.
#include "top_view.hpp"

#include <gmock/gmock.h>

namespace gpumem::cli {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t gib = std::uint64_t{1} << 30;
constexpr key_names names{.up = 1000, .down = 1001, .backspace = 1002};

json card(int index, std::uint64_t used, const json& busy, json processes) {
  return {{"index", index},
          {"name", "A card with quite a long name"},
          {"uuid", "GPU-" + std::to_string(index)},
          {"pci_bus_id", ""},
          {"total_bytes", 24 * gib},
          {"used_bytes", used},
          {"free_bytes", 24 * gib - used},
          {"busy_percent", busy},
          {"temperature_c", 61},
          {"power_mw", 250000},
          {"power_limit_mw", 300000},
          {"mig", false},
          {"instances", json::array()},
          {"leases", 0},
          {"processes", std::move(processes)}};
}
json process(int pid, const char* user, const char* command, const json& used) {
  return {{"pid", pid}, {"user", user}, {"command", command}, {"used_bytes", used}};
}

/// Two cards: a served program and another one on the first, one without a figure on the second.
look machine() {
  look now;
  now.devices =
      json::array({card(0, 23 * gib, 97,
                        json::array({process(20, "ann", "python3", 2 * gib), process(7, "bob", "train", 9 * gib)})),
                   card(1, 2 * gib, nullptr,
                        json::array({process(11, "cid", "a-program-with-a-very-long-name-indeed", nullptr)}))});
  now.served = json::array();
  now.served.push_back({{"pid", 7},
                        {"user", "bob"},
                        {"command", "./train --epochs 90"},
                        {"answered", true},
                        {"group", ""},
                        {"devices",
                         {{{"uuid", "GPU-0"},
                           {"name", "0"},
                           {"policy", "growth"},
                           {"limit_bytes", 10 * gib},
                           {"live_bytes", 3 * gib},
                           {"reserved_bytes", 8 * gib},
                           {"external_fragmentation", 0.25}}}}});
  return now;
}

std::string text_of(const screen_line& line) {
  std::string out;
  for (const span_of_text& part : line) out += part.text;
  return out;
}
std::vector<std::string> texts(const look& now, const view_state& state, std::size_t columns = 80) {
  std::vector<std::string> out;
  for (const screen_line& line : top_lines(now, state, columns)) out.push_back(text_of(line));
  return out;
}
std::vector<int> pids(const look& now, const view_state& state) {
  std::vector<int> out;
  for (const process_row& row : process_rows(now, state)) out.push_back(row.pid);
  return out;
}

TEST(TopView, FitsEveryWidth) {
  for (const std::size_t columns : {1U, 20U, 79U, 80U, 132U, 300U}) {
    for (const std::string& line : texts(machine(), {}, columns)) EXPECT_LE(line.size(), columns) << line;
  }
}

TEST(TopView, ShowsCardsWithColouredBars) {
  const std::vector<screen_line> lines = top_lines(machine(), {}, 80);
  const screen_line& first = lines[2];
  EXPECT_EQ(text_of(first), "  0 A card with qui~  61 C 250/300 W [||||||||]  97% [||||||||] 23.0/24.0 GiB");
  EXPECT_EQ(first[1].appearance, style::high);
  EXPECT_EQ(first[3].appearance, style::high);
  EXPECT_EQ(text_of(lines[3]), "  1 A card with qui~  61 C 250/300 W [busy unknown]  [|       ] 2.0/24.0 GiB");
  EXPECT_EQ(lines[3][2].appearance, style::low);
}

TEST(TopView, ShowsProcessesWithTheirServedMemory) {
  const std::vector<std::string> lines = texts(machine(), {});
  EXPECT_EQ(lines[6], "  0       7 bob           9.0G growth        3.0G     8.0G   25% ./train --epoc~");
  EXPECT_EQ(lines[7], "  0      20 ann           2.0G -" + std::string(33, ' ') + "python3");
  EXPECT_THAT(lines[8], HasSubstr("  1      11 cid "));
  EXPECT_THAT(lines[8], HasSubstr(" a-program-with~"));
}

TEST(TopView, KeysSortAndFilter) {
  const look now = machine();
  view_state state;
  EXPECT_THAT(pids(now, state), ElementsAre(7, 20, 11));
  EXPECT_EQ(press(state, 's', 3, names), key_action::none);
  EXPECT_THAT(pids(now, state), ElementsAre(7, 20, 11)) << "by memory";
  press(state, 's', 3, names);
  EXPECT_THAT(pids(now, state), ElementsAre(7, 11, 20)) << "by pid";
  press(state, 's', 3, names);
  EXPECT_THAT(pids(now, state), ElementsAre(20, 7, 11)) << "by user";
  press(state, 's', 3, names);
  EXPECT_THAT(pids(now, state), ElementsAre(7, 11, 20)) << "by command";
  press(state, 's', 3, names);
  EXPECT_EQ(state.sort, sort_order::gpu);

  press(state, '/', 3, names);
  for (const char c : std::string{"qANN"})
    EXPECT_EQ(press(state, c, 3, names), key_action::none) << "a letter of the filter";
  for (int i = 0; i < 4; ++i) press(state, names.backspace, 3, names);
  for (const char c : std::string{"Ann"}) press(state, c, 3, names);
  EXPECT_THAT(pids(now, state), ElementsAre(20));
  EXPECT_THAT(texts(now, state).back(), HasSubstr("filter: Ann_"));
  press(state, '\n', 1, names);
  EXPECT_THAT(texts(now, state).front(), HasSubstr("/ filter: Ann"));
  EXPECT_EQ(press(state, 'q', 1, names), key_action::quit);
}

TEST(TopView, KeysSelectWithinTheList) {
  view_state state;
  press(state, names.up, 3, names);
  EXPECT_EQ(state.selected, 0U);
  for (int i = 0; i < 5; ++i) press(state, names.down, 3, names);
  EXPECT_EQ(state.selected, 2U);
  const std::vector<screen_line> lines = top_lines(machine(), state, 80);
  EXPECT_EQ(lines[8].front().appearance, style::selected);
  EXPECT_EQ(lines[6].front().appearance, style::plain);
  press(state, 'x', 1, names);
  EXPECT_EQ(state.selected, 0U) << "fewer processes than before";
  EXPECT_EQ(press(state, 't', 1, names), key_action::trim);
  EXPECT_EQ(press(state, 'd', 1, names), key_action::dump);
}

TEST(TopView, WithoutCardsOrProcessesItSaysSo) {
  look nothing;
  nothing.devices = json::array();
  nothing.served = json::array();
  nothing.problem = "no libnvidia-ml.so.1";
  const std::vector<std::string> lines = texts(nothing, {});
  EXPECT_THAT(lines.front(), HasSubstr("no NVML"));
  EXPECT_EQ(lines[1], "no libnvidia-ml.so.1");
  EXPECT_EQ(lines.back(), "no process");
  view_state state;
  state.message = "process 7 gave 1.00 GiB back\x1b[31m";
  EXPECT_THAT(texts(nothing, state).back(), Not(HasSubstr("\x1b"))) << "what another process says is printed plainly";
}

}  // namespace
}  // namespace gpumem::cli
