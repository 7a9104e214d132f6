/// Text to bytes, limits and pools, and back. Pure functions.
///
/// Uses integer arithmetic: shares in millionths of a percent, fractions of a unit in 18 decimals, the rest dropped.
/// Repeated conversion between text and value therefore never drifts.
#include "units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "bits.hpp"
#include "text.hpp"

namespace gpumem {
namespace {

constexpr std::string_view expected_bytes = "bytes such as 4GiB, 512M or 1000000";
constexpr std::string_view expected_limit = "bytes (4GiB), a share of the device (30%) or of what is free (80%free)";
constexpr std::string_view expected_pools = "a list such as 2GiB,2GiB or train:8GiB,eval:30%:caching";
constexpr std::size_t most_pools = 64;

/// The table of units: `G` and `GiB` are powers of 1024, `GB` is a power of 1000. Ignores case, so `kB`, `KB` and `kb`
/// are 1000 bytes.
struct unit_name {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<unit_name, 14> units{{{"", 1},
                                           {"b", 1},
                                           {"k", kib},
                                           {"kib", kib},
                                           {"kb", 1'000},
                                           {"m", mib},
                                           {"mib", mib},
                                           {"mb", 1'000'000},
                                           {"g", gib},
                                           {"gib", gib},
                                           {"gb", 1'000'000'000},
                                           {"t", tib},
                                           {"tib", tib},
                                           {"tb", 1'000'000'000'000}}};

/// A value, or the reason why there is none ("unknown unit").
template <typename T>
struct reading {
  T value{};
  std::string problem{};
};

constexpr std::uint64_t one = 1'000'000'000'000'000'000;  // 10^18
constexpr std::uint64_t whole_share = 100'000'000;        // 100 % in millionths of a percent

struct decimal {
  std::uint64_t whole = 0;
  std::uint64_t fraction = 0;  ///< in 10^-18, rounded down
  bool has_fraction = false;
  bool exceeds_whole = false;  ///< any decimal is not 0, even a dropped one
  std::string_view rest;       ///< the text after the number
};

constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

/// Digits with an optional fraction; neither sign nor exponent.
reading<decimal> read_decimal(std::string_view text) {
  if (text.empty()) return {.problem = "empty"};
  if (text.front() == '-') return {.problem = "negative"};
  if (!is_digit(text.front())) return {.problem = "not a number"};
  decimal number;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number.whole);
  if (error != std::errc{}) return {.problem = "more than 2^64-1"};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.empty() && text.front() == '.') {
    text.remove_prefix(1);
    if (text.empty() || !is_digit(text.front())) return {.problem = "no digit after the point"};
    number.has_fraction = true;
    for (std::uint64_t worth = one / 10; !text.empty() && is_digit(text.front()); worth /= 10) {
      const auto digit = static_cast<std::uint64_t>(text.front() - '0');
      number.fraction += digit * worth;
      number.exceeds_whole = number.exceeds_whole || digit != 0;
      text.remove_prefix(1);
    }
  }
  number.rest = text;
  return {.value = number};
}

/// `fraction / 10^18 * unit_bytes`, rounded down.
std::uint64_t scaled_fraction(std::uint64_t fraction, std::uint64_t unit_bytes) noexcept {
  __extension__ using wide = unsigned __int128;  // 60 bits times 40
  return static_cast<std::uint64_t>(wide{fraction} * unit_bytes / one);
}

reading<std::uint64_t> read_bytes(std::string_view text) {
  const reading<decimal> number = read_decimal(trimmed(text));
  if (!number.problem.empty()) return {.problem = number.problem};
  const std::string unit = lowered(trimmed(number.value.rest));
  for (const unit_name& known : units) {
    if (known.name != unit) continue;
    if (known.bytes == 1 && number.value.has_fraction) return {.problem = "a fraction of a byte"};
    if (number.value.whole > UINT64_MAX / known.bytes) return {.problem = "more than 2^64-1 bytes"};
    const std::uint64_t whole = number.value.whole * known.bytes;
    const std::uint64_t fraction = scaled_fraction(number.value.fraction, known.bytes);
    if (whole > UINT64_MAX - fraction) return {.problem = "more than 2^64-1 bytes"};
    return {.value = whole + fraction};
  }
  return {.problem = fmt::format("unknown unit {}", printable(trimmed(number.value.rest), 16))};
}

/// The digits before the `%` of a share, as a fraction.
reading<double> read_share(std::string_view text) {
  const reading<decimal> number = read_decimal(trimmed(text));
  if (!number.problem.empty()) return {.problem = number.problem};
  const decimal& percent = number.value;
  if (!percent.rest.empty()) return {.problem = "not a number before the %"};
  if (percent.whole > 100 || (percent.whole == 100 && percent.exceeds_whole)) return {.problem = "more than 100 %"};
  const std::uint64_t share = percent.whole * (whole_share / 100) + percent.fraction / (one / (whole_share / 100));
  if (share == 0) return {.problem = percent.exceeds_whole ? "less than a millionth of a percent" : "zero"};
  return {.value = static_cast<double>(share) / static_cast<double>(whole_share)};
}

reading<byte_limit> read_limit(std::string_view text) {
  const std::size_t percent = text.find('%');
  if (percent == std::string_view::npos) {
    const reading<std::uint64_t> bytes = read_bytes(text);
    if (!bytes.problem.empty()) return {.problem = bytes.problem};
    if (bytes.value == 0) return {.problem = "zero"};
    return {.value = {.unit = byte_limit::kind::bytes, .bytes = bytes.value}};
  }
  const std::string of = lowered(trimmed(text.substr(percent + 1)));
  if (!of.empty() && of != "free") return {.problem = "only `free` may follow the %"};
  const reading<double> share = read_share(text.substr(0, percent));
  if (!share.problem.empty()) return {.problem = share.problem};
  return {
      .value = {.unit = of.empty() ? byte_limit::kind::of_total : byte_limit::kind::of_free, .fraction = share.value}};
}

bool is_pool_name(std::string_view name) noexcept {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || !letter(name.front())) return false;
  for (const char c : name) {
    if (!letter(c) && !is_digit(c) && c != '-') return false;
  }
  return true;
}

/// One part of a list of pools.
reading<pool_spec> read_pool(std::string_view part) {
  if (trimmed(part).empty()) return {.problem = "empty"};
  pool_spec pool;
  const std::size_t first = part.find(':');
  std::string_view limit = part;
  if (first != std::string_view::npos) {
    const std::string_view name = trimmed(part.substr(0, first));
    if (!is_pool_name(name)) {
      return {.problem = fmt::format("`{}` is not a name (a letter or _, then letters, digits, _ and -)",
                                     printable(name, 32))};
    }
    pool.name = name;
    limit = part.substr(first + 1);
    const std::size_t second = limit.find(':');
    if (second != std::string_view::npos) {
      const std::string_view policy = trimmed(limit.substr(second + 1));
      if (policy.empty()) return {.problem = "no policy after the second `:`"};
      pool.policy = policy;
      limit = limit.substr(0, second);
    }
  }
  const reading<byte_limit> size = read_limit(limit);
  if (!size.problem.empty()) return {.problem = fmt::format("its limit: {}", size.problem)};
  pool.limit = size.value;
  return {.value = pool};
}

/// Whether the text after a separator in a list of pools is another parameter of the policy, not another pool.
bool is_policy_parameter(std::string_view rest) noexcept {
  const std::string_view part = rest.substr(0, rest.find_first_of(",+"));
  return part.find('=') < part.find(':');
}

status refused(std::string_view what, std::string_view text, std::string_view problem, std::string_view expected) {
  return {errc::bad_setting, fmt::format("{}={}: {}; expected {}", what, printable(text), problem, expected)};
}

/// A fraction in millionths of a percent. Code may have set any number.
std::uint64_t share_of(double fraction) noexcept {
  if (!(fraction > 0)) return 0;
  if (fraction >= 1) return whole_share;
  return static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(whole_share)));
}

std::uint64_t resolve_share(std::uint64_t bytes, double fraction) noexcept {
  const std::uint64_t share = share_of(fraction);
  return bytes / whole_share * share + bytes % whole_share * share / whole_share;
}

}  // namespace

result<std::uint64_t> parse_bytes(std::string_view text, std::string_view what) {
  const reading<std::uint64_t> bytes = read_bytes(text);
  if (!bytes.problem.empty()) return refused(what, text, bytes.problem, expected_bytes);
  return bytes.value;
}

result<byte_limit> parse_limit(std::string_view text, std::string_view what) {
  const reading<byte_limit> limit = read_limit(text);
  if (!limit.problem.empty()) return refused(what, text, limit.problem, expected_limit);
  return limit.value;
}

result<std::vector<pool_spec>> parse_pools(std::string_view text, std::string_view what) {
  if (trimmed(text).empty()) return refused(what, text, "empty", expected_pools);
  std::vector<pool_spec> pools;
  std::set<std::string, std::less<>> names;
  for (std::size_t begin = 0; begin <= text.size();) {
    std::size_t end = std::min(text.find_first_of(",+", begin), text.size());
    while (end < text.size() && is_policy_parameter(text.substr(end + 1))) {
      end = std::min(text.find_first_of(",+", end + 1), text.size());
    }
    if (pools.size() == most_pools) {
      return refused(what, text, fmt::format("more than {} pools", most_pools), expected_pools);
    }
    const reading<pool_spec> pool = read_pool(text.substr(begin, end - begin));
    if (!pool.problem.empty()) {
      return refused(what, text, fmt::format("pool {} of the list: {}", pools.size(), pool.problem), expected_pools);
    }
    if (!pool.value.name.empty() && !names.insert(pool.value.name).second) {
      return refused(what, text, fmt::format("two pools named {}", printable(pool.value.name, 32)), expected_pools);
    }
    pools.push_back(pool.value);
    begin = end + 1;
  }
  return pools;
}

result<byte_limit> parse_share_or_bytes(std::string_view text, std::string_view what) {
  if (const std::string_view none = trimmed(text); none == "0" || none == "0%") {
    return byte_limit{.unit = byte_limit::kind::bytes, .bytes = 0};
  }
  const reading<byte_limit> given = read_limit(text);
  if (given.problem.empty() && given.value.unit != byte_limit::kind::of_free) return given.value;
  return status{errc::bad_setting, fmt::format("{}={}: expected a share (5%) or bytes (64MiB)", what, printable(text))};
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < kib) return fmt::format("{} B", bytes);
  constexpr std::array<std::string_view, 4> names{"KiB", "MiB", "GiB", "TiB"};
  std::uint64_t unit = kib;
  for (std::size_t i = 0;; ++i, unit *= 1024) {
    std::uint64_t whole = bytes / unit;
    std::uint64_t hundredths = (bytes % unit * 100 + unit / 2) / unit;
    whole += hundredths / 100;
    hundredths %= 100;
    if (whole < 1024 || i + 1 == names.size()) return fmt::format("{}.{:02} {}", whole, hundredths, names[i]);
  }
}

std::string exact_bytes(std::uint64_t bytes) {
  for (const auto& [unit, name] : {std::pair{tib, "TiB"}, {gib, "GiB"}, {mib, "MiB"}, {kib, "KiB"}}) {
    if (bytes != 0 && bytes % unit == 0) return fmt::format("{}{}", bytes / unit, name);
  }
  return fmt::format("{}", bytes);
}

std::uint64_t byte_limit::resolve(std::uint64_t total_bytes, std::uint64_t free_bytes) const noexcept {
  switch (unit) {
    case kind::none:
      return total_bytes;
    case kind::bytes:
      return bytes;
    case kind::of_total:
      return resolve_share(total_bytes, fraction);
    case kind::of_free:
      return resolve_share(free_bytes, fraction);
  }
  return total_bytes;
}

std::string byte_limit::to_string() const {
  if (unit == kind::none) return "none";
  if (unit == kind::bytes) return exact_bytes(bytes);
  const std::uint64_t share = share_of(fraction);
  std::string percent = fmt::format("{}.{:06}", share / (whole_share / 100), share % (whole_share / 100));
  percent.erase(percent.find_last_not_of('0') + 1);
  if (percent.back() == '.') percent.pop_back();
  return percent + (unit == kind::of_free ? "%free" : "%");
}

std::string pools_text(const std::vector<pool_spec>& pools) {
  std::string text;
  for (std::size_t i = 0; i < pools.size(); ++i) {
    const pool_spec& pool = pools[i];
    if (i != 0) text += ',';
    if (!pool.name.empty() || !pool.policy.empty()) {
      text += (pool.name.empty() ? fmt::format("pool{}", i) : pool.name) + ':';
    }
    text += pool.limit.to_string();
    if (!pool.policy.empty()) text += ':' + pool.policy;
  }
  return text;
}

}  // namespace gpumem
