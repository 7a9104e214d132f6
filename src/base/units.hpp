/// Parses values of settings, and formats them as text that the parsers of gpumem/settings.hpp read back to the same
/// value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/settings.hpp"

namespace gpumem {

/// Parses a share (`5%`) or bytes (`64MiB`); unlike a limit it may be 0.
[[nodiscard]] result<byte_limit> parse_share_or_bytes(std::string_view text, std::string_view setting);

/// Parses GPUMEM_EXCHANGE_RATE: microseconds per MiB.
[[nodiscard]] result<std::uint64_t> parse_exchange_rate(std::string_view text, std::string_view setting);

/// `4GiB` for a whole number of a unit, else plain digits.
[[nodiscard]] std::string exact_bytes(std::uint64_t bytes);

/// `train:8GiB,eval:30%:caching`; an unnamed pool with a policy is named after its ordinal, `pool1`.
[[nodiscard]] std::string pools_text(const std::vector<pool_spec>& pools);

}  // namespace gpumem
