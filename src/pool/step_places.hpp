// Where a step that repeats has placed its large requests, so that its next repetition places them there, too.
//
// Each pass through a step would otherwise place its blocks a little differently, because the pages that the pass
// before made have changed what fits where, and would lack pages again. The same places lack none. A request is named
// by a hash of its size and of those of the large requests before it, 63 at most (a gear hash: Xia et al., "Ddelta",
// Performance Evaluation 79, 2014). The first place that is learnt for a name stays until the program no longer repeats
// its step. The pool's lock guards it.
#pragma once

#include <cstdint>
#include <new>
#include <unordered_map>

#include "bits.hpp"
#include "gpumem/device.hpp"
#include "mixed_bits.hpp"

namespace gpumem {

class step_places {
 public:
  /// Smaller requests are not followed: their places decide about few pages.
  static constexpr std::uint64_t least_bytes = mib;

  /// Names the request of `bytes`, which comes now. Forgets all places if the program does not repeat its step.
  [[nodiscard]] std::uint64_t name(std::uint64_t bytes, bool repeats) noexcept {
    repeats_ = repeats;
    if (!repeats && !known_.empty()) known_ = {};
    return latest_ = (latest_ << 1) + mixed_bits(bytes);
  }
  /// The place of the request of that name; 0 if none is known.
  [[nodiscard]] address place_of(std::uint64_t name) const noexcept {
    const auto found = known_.find(name);
    return found != known_.end() ? found->second : 0;
  }
  /// Without host memory for it, the place stays unknown.
  void learn(std::uint64_t name, address place) noexcept {
    if (!repeats_ || known_.size() >= most_places) return;
    try {
      known_.try_emplace(name, place);
    } catch (const std::bad_alloc&) {
    }
  }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept {
    return known_.size() * (sizeof(*known_.begin()) + 2 * sizeof(void*)) + known_.bucket_count() * sizeof(void*);
  }

 private:
  static constexpr std::size_t most_places = 65'536;  ///< 3 MiB of host memory

  std::uint64_t latest_ = 0;  ///< the name of the latest large request
  bool repeats_ = false;
  std::unordered_map<std::uint64_t, address> known_;
};

}  // namespace gpumem
