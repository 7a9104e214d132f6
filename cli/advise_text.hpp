// The results of `gpumem advise` as text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace gpumem::cli {

/// Runs of one program differ by up to this share under a policy that moves pages with its default slack
/// (docs/simulate.md: 1104 to 1130 MiB).
inline constexpr std::uint64_t margin_percent = 3;

/// `all` is the document of `advise --json`, and `path` the recording's.
std::string advice_text(const nlohmann::ordered_json& all, const std::string& path);

}  // namespace gpumem::cli
