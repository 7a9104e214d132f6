#include "cards.hpp"

namespace gpumem::simcuda {
namespace {

constexpr card_profile profiles[] = {
#define CARD(key, name, mib, major, minor, multiprocessors, threads, shared_kib, l2_kib) \
  {key, name, mib, major, minor, multiprocessors, threads, shared_kib, l2_kib},
#include "cards.def"
#undef CARD
};

}  // namespace

std::span<const card_profile> card_profiles() noexcept { return profiles; }

const card_profile* find_card(std::string_view key) noexcept {
  for (const card_profile& each : profiles) {
    if (each.key == key) return &each;
  }
  return nullptr;
}

const card_profile& default_card() noexcept { return *find_card("h100"); }

}  // namespace gpumem::simcuda
