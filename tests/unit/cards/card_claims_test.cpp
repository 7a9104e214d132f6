// The room of a card beside other programs' claims, and the order of waiting programs.
#include "card_claims.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "bits.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t second = 1'000'000'000;
constexpr int nobody = 999'999'999;

card_state card_of_24_gib() {
  return {.uuid = "GPU-1", .name = "Card", .total_bytes = 24 * gib, .free_bytes = 24 * gib, .known = true};
}

card_claim given(std::uint64_t bytes, std::uint64_t since_ns = 1) {
  return {.uuid = "1", .bytes = bytes, .since_ns = since_ns, .pid = nobody, .pid_space = own_pid_space()};
}

card_claim waiting(std::uint64_t bytes, std::uint64_t since_ns, std::uint64_t seen_ns) {
  card_claim out = given(bytes, since_ns);
  out.waiting = true;
  out.seen_ns = seen_ns;
  return out;
}

bool fits(const card_state& card, std::uint64_t wanted) { return wanted <= card.left_beside_waiters.value_or(wanted); }

/// The card for a program that arrives at second 100.
card_state counted(const std::vector<card_claim>& claims, std::uint64_t since_ns = 100 * second) {
  std::vector<card_state> cards{card_of_24_gib()};
  count_claims(cards, claims, {}, since_ns, 100 * second);
  return cards.front();
}

TEST(CardClaims, OfTooManyBytesPromiseAllThereIs) {
  const card_state card = counted({given(UINT64_MAX - 20 * gib), given(21 * gib)});
  EXPECT_EQ(card.claims, 2U);
  EXPECT_EQ(card.promised_bytes, UINT64_MAX) << "and not 1 GiB, which would be given twice";
}

TEST(CardClaims, OfAnAncestorDoNotCountAndOfTheSamePidElsewhereDo) {
  card_claim own = given(5 * gib);
  own.pid = ::getppid();
  EXPECT_EQ(counted({own}).promised_bytes, 0U);
  own.pid_space += 1;
  EXPECT_EQ(counted({own}).promised_bytes, 5 * gib) << "another container";
  own.pid_space = 0;
  EXPECT_EQ(counted({own}).promised_bytes, 5 * gib) << "not known";
}

TEST(CardClaims, DeductTheMemoryOfTheirProgramOnlyInThisPidNamespace) {
  std::vector<gpu_usage> usage(1);
  usage[0].uuid = "GPU-1";
  usage[0].processes = {{.pid = 1, .used_bytes = 2 * gib}};
  card_claim claim = given(5 * gib);
  claim.pid = 1;
  claim.pid_space += 1;
  std::vector<card_state> cards{card_of_24_gib()};
  count_claims(cards, std::vector{claim}, usage, 0, 0);
  EXPECT_EQ(cards[0].promised_bytes, 5 * gib);
}

TEST(CardClaims, ALeaseTakesTheFirstFreePlace) {
  std::vector<card_claim> leases(3, given(0));
  leases[0].place = 0;
  leases[1].place = 1;
  leases[2].place = 3;
  EXPECT_EQ(counted(leases).next_place, 2U);
  EXPECT_EQ(counted({given(gib)}).next_place, 0U) << "a claim on a named card is no lease";
}

TEST(CardClaims, ALaterProgramStartsOnlyBesideTheWaiter) {
  const card_state card = counted({waiting(20 * gib, 50 * second, 99 * second)});
  EXPECT_TRUE(fits(card, 4 * gib));
  EXPECT_FALSE(fits(card, 4 * gib + 1));
}

TEST(CardClaims, ALaterProgramStartsOnlyBesideEachEarlierWaiter) {
  const card_state card =
      counted({waiting(20 * gib, 50 * second, 99 * second), waiting(23 * gib, 60 * second, 99 * second)});
  EXPECT_TRUE(fits(card, gib));
  EXPECT_FALSE(fits(card, gib + 1));
}

TEST(CardClaims, AWaiterDoesNotWaitForLaterOnes) {
  EXPECT_TRUE(fits(counted({waiting(20 * gib, 50 * second, 99 * second)}, 40 * second), 24 * gib));
}

TEST(CardClaims, SmallProgramsTogetherDoNotDelayTheFirstWaiter) {
  const card_claim first = waiting(20 * gib, 50 * second, 99 * second);
  const std::vector<card_claim> claims{first, given(2 * gib, 60 * second), given(2 * gib, 70 * second)};
  EXPECT_FALSE(fits(counted(claims), gib));
  const std::vector<card_claim> before{first, given(2 * gib, 40 * second), given(2 * gib, 30 * second)};
  EXPECT_TRUE(fits(counted(before), gib)) << "the waiter waits for these";
}

TEST(CardClaims, MemoryWithoutAClaimLeavesLessBesideTheFirstWaiter) {
  std::vector<card_state> cards{card_of_24_gib()};
  cards[0].free_bytes -= 3 * gib;
  const std::vector<card_claim> claims{waiting(20 * gib, 50 * second, 99 * second), given(gib, 40 * second)};
  count_claims(cards, claims, {}, 100 * second, 100 * second);
  EXPECT_TRUE(fits(cards[0], 2 * gib));
  EXPECT_FALSE(fits(cards[0], 2 * gib + 1));
}

TEST(CardClaims, AWaiterThatHasStoppedLookingDoesNotHoldOthersUp) {
  EXPECT_TRUE(fits(counted({waiting(20 * gib, 50 * second, 69 * second)}), 24 * gib));
  EXPECT_FALSE(fits(counted({waiting(20 * gib, 50 * second, UINT64_MAX)}), 24 * gib));
}

TEST(CardClaims, AWaiterForMoreThanTheCardLeavesNothing) {
  EXPECT_FALSE(fits(counted({waiting(UINT64_MAX, 50 * second, 99 * second)}), 1));
}

}  // namespace
}  // namespace gpumem
