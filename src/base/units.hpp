/// Values of settings back into text, such that the parsers of gpumem/settings.hpp read the same value again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpumem/settings.hpp"

namespace gpumem {

/// `4GiB` where the bytes are a whole number of a unit, else plain digits.
[[nodiscard]] std::string exact_bytes(std::uint64_t bytes);

/// `train:8GiB,eval:30%:caching`; an unnamed pool with a policy gets its ordinal's name, `pool1`.
[[nodiscard]] std::string pools_text(const std::vector<pool_spec>& pools);

}  // namespace gpumem
