// The whole table of forms of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, over four cards.
#include "visible_cards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace gpumem {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ordinals = std::vector<std::size_t>;

std::vector<card> four() {
  std::vector<card> cards(4);
  cards[0].uuid = "GPU-aaaa0000-1";
  cards[1].uuid = "GPU-aaaa1111-2";
  cards[2].uuid = "GPU-bbbb2222-3";
  cards[3].uuid = "GPU-cccc3333-4";
  for (std::size_t i = 0; i < 4; ++i) cards[i].name = std::string(1, static_cast<char>('A' + i));
  return cards;
}

struct row {
  const char* variable;  ///< null: not set
  ordinals shown;
  const char* because;  ///< of a card that is hidden
};

const row table[] = {
    // not set, empty
    {nullptr, {0, 1, 2, 3}, nullptr},
    {"", {}, "is empty"},
    {" ", {}, "is empty"},
    // ordinals: the order is the list's
    {"1", {1}, "does not name it"},
    {"0,2,3", {0, 2, 3}, "does not name it"},
    {"3,0", {3, 0}, "does not name it"},
    {"3,2,1,0", {3, 2, 1, 0}, nullptr},
    {" 1 , 2 ", {1, 2}, "does not name it"},
    {"+1", {1}, "does not name it"},
    {"01", {1}, "does not name it"},
    {"1gpu2,2ampere", {1, 2}, "does not name it"},  // as strtoul reads them
    // an invalid entry ends the list
    {"-1", {}, "'-1', which is no ordinal"},
    {"0,-1,1", {0}, "'-1'"},
    {"0,2,-1,1", {0, 2}, "'-1'"},
    {"4", {}, "'4', which does not exist"},
    {"1,4,2", {1}, "'4', which does not exist"},
    {"99999999999999999999999", {}, "does not exist"},
    {"0,,1", {0}, "'', which is empty"},
    {",0", {}, "'', which is empty"},
    {"0,1,", {0, 1}, "'', which is empty"},
    {"none", {}, "'none', which is no ordinal"},
    {"\"0,1\"", {}, "which is no ordinal"},  // quotes that no shell took away
    {"NoDevFiles", {}, "which is no ordinal"},
    {"0;1", {0}, "does not name it"},  // strtoul: 0
    // a card named twice leaves none; entries after an invalid one do not count
    {"0,0", {}, "0 twice"},
    {"0,1,0", {}, "0 twice"},
    {"1,+1", {}, "+1 twice"},
    {"0,-1,0", {0}, "'-1'"},
    // UUIDs, and enough of their beginning
    {"GPU-aaaa1111-2", {1}, "does not name it"},
    {"GPU-b", {2}, "does not name it"},
    {"GPU-c,GPU-aaaa0", {3, 0}, "does not name it"},
    {"GPU-aaaa", {}, "'GPU-aaaa', which names more than one"},
    {"GPU-b,GPU-aaaa,GPU-c", {2}, "names more than one"},
    {"GPU-", {}, "names more than one"},
    {"GPU-dead", {}, "'GPU-dead', which does not exist"},
    {"GPU-b,GPU-dead,GPU-c", {2}, "'GPU-dead'"},
    {"GPU-b,GPU-bbbb2222-3", {}, "twice"},
    {"gpu-b", {}, "which is no ordinal"},  // case counts
    {"bbbb2222", {}, "which is no ordinal"},
    // one kind a list
    {"0,GPU-c", {0}, "of another kind"},
    {"GPU-c,0", {3}, "of another kind"},
    {"GPU-c,MIG-x", {3}, "of another kind"},
    {"MIG-x", {}, "'MIG-x', which does not exist"},
};

TEST(VisibleCards, TheWholeTableOfForms) {
  const std::vector<card> cards = four();
  for (const row& r : table) {
    const auto variable = r.variable == nullptr ? std::nullopt : std::optional<std::string>{r.variable};
    const char* const name = r.variable == nullptr ? "(not set)" : r.variable;
    const visibility got = visible_cards(cards, variable);
    ordinals shown;
    for (const visible_card& v : got.cards) {
      shown.push_back(v.card);
      EXPECT_EQ(v.uuid, cards[v.card].uuid) << name;
    }
    EXPECT_EQ(shown, r.shown) << name;
    EXPECT_EQ(got.hidden.size(), cards.size() - shown.size()) << name;
    if (r.because != nullptr) {
      EXPECT_THAT(got.hidden, Contains(HasSubstr(r.because))) << name;
    }
  }
}

TEST(VisibleCards, OfNoCardsNothingIsVisible) {
  for (const char* list : {"0", "", "-1", "GPU-a"}) EXPECT_TRUE(visible_cards({}, list).cards.empty()) << list;
  EXPECT_TRUE(visible_cards({}, std::nullopt).cards.empty());
}

TEST(VisibleCards, TheOnlyCardIsNamedByAnyBeginning) {
  const std::vector<card> one{four().front()};
  EXPECT_EQ(visible_cards(one, "GPU-").cards.size(), 1U);
}

std::vector<card> with_mig() {
  std::vector<card> cards = four();
  cards[1].mig = true;
  cards[1].instances = {"MIG-1111", "MIG-1122"};
  cards[3].mig = true;
  return cards;
}

std::vector<std::string> shown_of(const std::vector<card>& cards, std::optional<std::string> variable) {
  std::vector<std::string> out;
  for (const visible_card& v : visible_cards(cards, variable).cards) out.push_back(v.uuid);
  return out;
}

TEST(VisibleCards, AProcessSeesOneMigInstanceAndNothingBesideIt) {
  using uuids = std::vector<std::string>;
  const std::vector<card> cards = with_mig();
  EXPECT_EQ(shown_of(cards, "MIG-1122"), uuids{"MIG-1122"});
  EXPECT_EQ(shown_of(cards, "MIG-1122,MIG-1111"), uuids{"MIG-1122"});
  EXPECT_EQ(shown_of(cards, "MIG-11"), uuids{}) << "ambiguous";
  EXPECT_EQ(shown_of(cards, "MIG-1122,MIG-1122"), uuids{}) << "twice";
  EXPECT_EQ(shown_of(cards, "1"), uuids{"MIG-1111"}) << "the card stands for its first instance";
  EXPECT_EQ(shown_of(cards, "GPU-aaaa1"), uuids{"MIG-1111"});
  EXPECT_EQ(shown_of(cards, "1,0"), uuids{"MIG-1111"});
  EXPECT_EQ(shown_of(cards, "0,1,2"), (uuids{"GPU-aaaa0000-1", "GPU-bbbb2222-3"}));
  EXPECT_EQ(shown_of(cards, "3"), uuids{});
  EXPECT_THAT(visible_cards(cards, "3,0").hidden, Contains(HasSubstr("in MIG mode without an instance")));
  EXPECT_THAT(visible_cards(cards, "1,0").hidden, Contains(HasSubstr("one MIG instance and nothing beside it")));
}

std::string order_of(const std::vector<card>& cards, std::optional<std::string> device_order) {
  std::vector<card> sorted = cards;
  order_cards(sorted, device_order);
  std::string names;
  for (const card& c : sorted) names += c.name;
  return names;
}

TEST(DeviceOrder, ByAddressOrFastestFirst) {
  std::vector<card> cards = four();
  cards[0].pci_bus_id = "00000000:C1:00.0";
  cards[1].pci_bus_id = "00000000:3B:00.0";
  cards[2].pci_bus_id = "00000001:01:00.0";
  cards[3].pci_bus_id = "00000000:86:00.0";
  EXPECT_EQ(order_of(cards, "PCI_BUS_ID"), "BDAC");
  EXPECT_EQ(order_of(cards, std::nullopt), "BDAC") << "equals go by address";
  cards[2].cores_mhz = 20;
  cards[0].cores_mhz = 10;
  cards[1].cores_mhz = 10;
  EXPECT_EQ(order_of(cards, std::nullopt), "CBAD");
  EXPECT_EQ(order_of(cards, "FASTEST_FIRST"), "CBAD");
  EXPECT_EQ(order_of(cards, "pci_bus_id"), "CBAD") << "the name is not that of the order";
  EXPECT_EQ(order_of(cards, "PCI_BUS_ID"), "BDAC");
}

}  // namespace
}  // namespace gpumem
