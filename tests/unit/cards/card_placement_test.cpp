// GPUMEM_DEVICES over imaginary cards: which are taken, the messages, and that concurrent starters do not share.
#include "card_placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <optional>
#include <span>

#include "bits.hpp"
#include "card_usage.hpp"

namespace gpumem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Cards with names of this process and test only, so that leases of other runs do not clash.
std::vector<card_state> cards(std::size_t count) {
  static std::atomic<unsigned> next{0};
  const std::string unique = std::to_string(::getpid()) + "-" + std::to_string(next++);
  std::vector<card_state> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back({.uuid = "GPU-" + std::string(1, static_cast<char>('a' + i)) + "-" + unique,
                   .name = "Card",
                   .free_bytes = 80 * gib,
                   .processes = 0,
                   .busy_percent = 0,
                   .known = true});
  }
  return out;
}

result<placement> place(std::string_view devices, const std::vector<card_state>& on, bool soft = false) {
  const auto choice = parse_devices(devices);
  EXPECT_TRUE(choice.ok()) << devices;
  return place_on_cards(*choice, on, soft);
}

TEST(Placement, TakesNamedCardsInTheirOrder) {
  const auto on = cards(4);
  EXPECT_THAT(place("all", on)->cards, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(place("", on)->cards, IsEmpty());
  EXPECT_THAT(place("2", on)->cards, ElementsAre(2));
  EXPECT_THAT(place("3,0", on)->cards, ElementsAre(3, 0));
  EXPECT_THAT(place("GPU-c,0", on)->cards, ElementsAre(2, 0));
  EXPECT_THAT(place("3,0", on)->warnings, IsEmpty());
  EXPECT_THAT(place("3", on)->notes, ElementsAre(HasSubstr("device 0 is GPU-d")));
}

TEST(Placement, AMissingCardIsAnErrorThatNamesTheExistingOnes) {
  EXPECT_EQ(place("7", cards(1)).code(), errc::bad_setting);
  EXPECT_EQ(place("7", cards(1)).why().message(), "GPUMEM_DEVICES=7: card 7 does not exist; expected 0 to 0");
  EXPECT_THAT(place("0", {}).why().message(), HasSubstr("no GPU is visible"));
  EXPECT_THAT(place("GPU-x", cards(2)).why().message(), HasSubstr("no visible card is GPU-x"));
  EXPECT_THAT(place("GPU-a,0", cards(2)).why().message(), HasSubstr("0 is a card named before"));
  EXPECT_THAT(place("auto:3", cards(2)).why().message(), HasSubstr("2 visible, 3 asked"));
  std::vector<card_state> twins = cards(2);
  twins[1].uuid = "GPU-a" + twins[1].uuid;
  EXPECT_THAT(place("GPU-a", twins).why().message(), HasSubstr("more than one"));
}

TEST(Placement, SoftPlacementTakesTheNextBestOrNoneAndSaysSo) {
  auto on = cards(3);
  on[1].free_bytes = 90 * gib;
  const auto replaced = place("0,7", on, true);
  ASSERT_TRUE(replaced.ok());
  EXPECT_THAT(replaced->cards, ElementsAre(0, 1)) << "most free of the others";
  EXPECT_THAT(replaced->warnings, ElementsAre(HasSubstr("card 7 does not exist; expected 0 to 2: " + on[1].uuid)));
  const auto late = place("7,1", on, true);
  ASSERT_TRUE(late.ok());
  EXPECT_THAT(late->cards, ElementsAre(1, 0)) << "a card that is named goes before a replacement";
  const auto nothing = place("7", {}, true);
  ASSERT_TRUE(nothing.ok());
  EXPECT_THAT(nothing->cards, IsEmpty());
  EXPECT_THAT(nothing->warnings, ElementsAre(HasSubstr("nothing instead")));
  const auto fewer = place("auto:5", cards(2), true);
  ASSERT_TRUE(fewer.ok());
  EXPECT_EQ(fewer->cards.size(), 2U);
  EXPECT_THAT(fewer->warnings, ElementsAre(HasSubstr("2 visible, 5 asked")));
}

TEST(Auto, IdleCardsFirstThenByFreeMemory) {
  auto on = cards(4);
  on[0].processes = 1;
  on[0].free_bytes = 79 * gib;
  on[1].busy_percent = 3;
  on[1].free_bytes = 200 * gib;
  on[2].free_bytes = 20 * gib;
  on[3].free_bytes = 40 * gib;
  EXPECT_THAT(place("auto", on)->cards, ElementsAre(3));
  EXPECT_THAT(place("auto:2", on)->cards, ElementsAre(3, 2));
  EXPECT_THAT(place("auto:4", on)->cards, ElementsAre(3, 2, 1, 0));
}

/// Takes the lease that the program's placement gives it.
void take_lease(std::vector<card_state>& on, const placement& placed) {
  on[placed.cards.front()].next_place = *placed.places.front() + 1;
}

TEST(Auto, ALeaseKeepsOthersAwayAsLongAsItIsHeld) {
  auto on = cards(2);
  const auto first = place("auto", on);
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(first->places, ElementsAre(0U));
  take_lease(on, *first);
  const auto second = place("auto", on);
  ASSERT_TRUE(second.ok());
  EXPECT_NE(first->cards, second->cards);
  on[first->cards.front()].next_place = 0;
  EXPECT_EQ(place("auto", on)->cards, first->cards);
}

TEST(Auto, OnlyAutoTakesLeases) {
  EXPECT_THAT(place("1,0", cards(2))->places, ElementsAre(std::nullopt, std::nullopt));
}

TEST(Auto, WhereAllAreTakenTheyAreSharedEvenly) {
  auto on = cards(4);
  std::map<std::size_t, int> starters;
  for (int i = 0; i < 12; ++i) {
    const auto one = place("auto", on);
    ASSERT_TRUE(one.ok());
    ++starters[one->cards.front()];
    take_lease(on, *one);
  }
  EXPECT_THAT(starters, ElementsAre(std::pair{0, 3}, std::pair{1, 3}, std::pair{2, 3}, std::pair{3, 3}));
}

TEST(Auto, ACardInUseByOthersCountsAsOneLease) {
  auto on = cards(2);
  on[0].processes = 2;
  on[0].free_bytes = 10 * gib;
  std::vector<std::size_t> order;
  for (int i = 0; i < 3; ++i) {
    const auto one = place("auto", on);
    order.push_back(one->cards.front());
    take_lease(on, *one);
  }
  EXPECT_THAT(order, ElementsAre(1, 1, 0)) << "beside one lease is more room than beside strangers with most of it";
}

TEST(Auto, WithoutNvmlItIsAnErrorOrTheOrderOfTheCards) {
  auto on = cards(2);
  for (card_state& c : on) c.known = false;
  EXPECT_THAT(place("auto", on).why().message(), HasSubstr("NVML"));
  const auto soft = place("auto", on, true);
  ASSERT_TRUE(soft.ok());
  EXPECT_EQ(soft->cards.size(), 1U);
  EXPECT_THAT(soft->warnings, ElementsAre(HasSubstr("NVML")));
}

TEST(CardUsage, FindsCardsAndInstancesByUuid) {
  std::vector<gpu_usage> usage(2);
  usage[0].uuid = "GPU-1";
  usage[0].free_bytes = 7;
  usage[0].busy_percent = 5;
  usage[0].processes = {{.pid = 1, .used_bytes = 2}};
  usage[1].uuid = "GPU-2";
  usage[1].mig = true;
  usage[1].instances = {{.uuid = "MIG-x", .total_bytes = 9, .used_bytes = 1, .free_bytes = 8}};
  EXPECT_EQ(state_of(usage, "GPU-1").free_bytes, 7U);
  EXPECT_EQ(state_of(usage, "GPU-1").processes, 1U);
  EXPECT_FALSE(state_of(usage, "GPU-1").idle());
  EXPECT_EQ(state_of(usage, "GPU-x").free_bytes, 8U) << "as CUDA writes an instance's UUID";
  EXPECT_TRUE(state_of(usage, "MIG-x").idle());
  EXPECT_FALSE(state_of(usage, "GPU-3").known);
  EXPECT_EQ(cards_of(usage)[1].instances, std::vector<std::string>{"MIG-x"});
}

TEST(CardUsage, MoreMemoryInUseThanOnAnUnusedCardIsUseWithoutListedProcesses) {
  constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  const auto idle = [](const gpu_usage& card, std::optional<std::uint64_t> idle_bytes = std::nullopt) {
    return state_of(std::span{&card, 1}, card.uuid, idle_bytes).idle();
  };
  gpu_usage card;
  card.uuid = "GPU-1";
  card.total_bytes = 80 * gib;
  card.used_bytes = gib;
  EXPECT_TRUE(idle(card));
  card.used_bytes = gib + 1;
  EXPECT_FALSE(idle(card));
  EXPECT_TRUE(idle(card, 2 * gib));
  card.graphics_bytes = 300 * mib;
  EXPECT_TRUE(idle(card)) << "a desktop";
  card.used_bytes = 2 * gib;
  EXPECT_FALSE(idle(card));
  card.reserved_bytes = 800 * mib;
  EXPECT_TRUE(idle(card));
  gpu_usage small;
  small.uuid = "GPU-2";
  small.total_bytes = 4 * gib;
  small.used_bytes = 300 * mib;
  EXPECT_FALSE(idle(small)) << "more than 5 %";
  small.measured_by = memory_source::probe;
  EXPECT_TRUE(idle(small)) << "the probe's own context";
  small.used_bytes = 3 * gib;
  EXPECT_FALSE(idle(small));
  small.measured_by = memory_source::host;
  EXPECT_TRUE(idle(small)) << "the host uses it";
}

}  // namespace
}  // namespace gpumem
