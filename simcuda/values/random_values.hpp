// Random operations use the simulator's own generator, seeded from the card's, so that the CPU's generator is
// unchanged.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

namespace gpumem::values {

/// Derives a seed from the card generator's next values. SplitMix64 makes neighbouring seeds independent.
inline std::uint64_t seed_of(const at::Generator& card) {
  std::uint64_t seed = card.current_seed() + 0x9e37'79b9'7f4a'7c15U * (card.get_offset() + 1);
  seed = (seed ^ (seed >> 30U)) * 0xbf58'476d'1ce4'e5b9U;
  seed = (seed ^ (seed >> 27U)) * 0x94d0'49bb'1331'11ebU;
  return seed ^ (seed >> 31U);
}

/// Returns the generator of an operation: its argument, or the card's.
inline at::Generator card_generator(const c10::IValue& passed, at::Device card) {
  if (passed.isGenerator() && passed.toGenerator().defined()) return passed.toGenerator();
  return at::globalContext().defaultGenerator(card);
}

inline at::Generator host_generator(std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

}  // namespace gpumem::values
