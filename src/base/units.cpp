/// Converts text to bytes, limits and pools, and back. Pure functions.
///
/// Uses integer arithmetic: shares in millionths of a percent, fractions of a unit in 18 decimals, rounded down. So
/// repeated conversion between text and value never drifts.
#include "units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "bits.hpp"
#include "text.hpp"

namespace gpumem {
namespace {

constexpr std::string_view expected_bytes = "bytes such as 4GiB, 512M or 1000000";
constexpr std::string_view expected_limit = "bytes (4GiB), a share of the device (30%) or of what is free (80%free)";
constexpr std::string_view expected_pools = "a list such as 2GiB,2GiB or train:8GiB,eval:30%:caching";
constexpr std::size_t most_pools = 64;

/// `G` and `GiB` are powers of 1024, `GB` is a power of 1000. Ignores case, so `kB`, `KB` and `kb` are 1000 bytes.
struct unit_prefix {
  std::string_view letter;
  std::uint64_t binary;
  std::uint64_t decimal;
};
constexpr unit_prefix unit_prefixes[] = {
    {"k", kib, 1'000}, {"m", mib, 1'000'000}, {"g", gib, 1'000'000'000}, {"t", tib, 1'000'000'000'000}};

/// The reason why a text has no value ("unknown unit"); `refused` turns it into a message.
status problem(std::string message) { return {errc::bad_setting, std::move(message)}; }

constexpr std::uint64_t decimal_scale = 1'000'000'000'000'000'000;  // 10^18
constexpr std::uint64_t whole_share = 100'000'000;                  // 100 % in millionths of a percent

struct decimal {
  std::uint64_t whole = 0;
  std::uint64_t fraction = 0;  ///< in 10^-18, rounded down
  bool has_fraction = false;
  bool exceeds_whole = false;  ///< a decimal is not 0, even one beyond the 18th
  std::string_view rest;       ///< the text after the number
};

constexpr bool is_digit(char character) noexcept { return character >= '0' && character <= '9'; }

/// Digits with an optional fraction; neither sign nor exponent.
result<decimal> read_decimal(std::string_view text) {
  if (text.empty()) return problem("empty");
  if (text.front() == '-') return problem("negative");
  if (!is_digit(text.front())) return problem("not a number");
  decimal number;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number.whole);
  if (error != std::errc{}) return problem("more than 2^64-1");
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.empty() && text.front() == '.') {
    text.remove_prefix(1);
    if (text.empty() || !is_digit(text.front())) return problem("no digit after the point");
    number.has_fraction = true;
    for (std::uint64_t worth = decimal_scale / 10; !text.empty() && is_digit(text.front()); worth /= 10) {
      const auto digit = static_cast<std::uint64_t>(text.front() - '0');
      number.fraction += digit * worth;
      number.exceeds_whole = number.exceeds_whole || digit != 0;
      text.remove_prefix(1);
    }
  }
  number.rest = text;
  return number;
}

/// Returns the bytes of one `unit`, in small letters; 0 if the unit is unknown.
std::uint64_t bytes_of(std::string_view unit) noexcept {
  if (unit.empty() || unit == "b") return 1;
  for (const auto& [letter, binary, decimal] : unit_prefixes) {
    if (!unit.starts_with(letter)) continue;
    const std::string_view rest = unit.substr(letter.size());
    if (rest.empty() || rest == "ib") return binary;
    if (rest == "b") return decimal;
  }
  return 0;
}

result<std::uint64_t> read_bytes(std::string_view text) {
  const result<decimal> number = read_decimal(trimmed(text));
  if (!number) return number.why();
  const std::uint64_t unit_bytes = bytes_of(lowered(trimmed(number->rest)));
  if (unit_bytes == 0) return problem(fmt::format("unknown unit {}", printable(trimmed(number->rest), 16)));
  if (unit_bytes == 1 && number->has_fraction) return problem("a fraction of a byte");
  __extension__ using wide = unsigned __int128;  // 64 bits times 40
  const wide bytes = wide{number->whole} * unit_bytes + wide{number->fraction} * unit_bytes / decimal_scale;
  if (bytes > UINT64_MAX) return problem("more than 2^64-1 bytes");
  return static_cast<std::uint64_t>(bytes);
}

/// Reads the digits before the `%` of a share, as a fraction.
result<double> read_share(std::string_view text) {
  const result<decimal> number = read_decimal(trimmed(text));
  if (!number) return number.why();
  const decimal& percent = *number;
  if (!percent.rest.empty()) return problem("not a number before the %");
  if (percent.whole > 100 || (percent.whole == 100 && percent.exceeds_whole)) return problem("more than 100 %");
  const std::uint64_t share =
      percent.whole * (whole_share / 100) + percent.fraction / (decimal_scale / (whole_share / 100));
  if (share == 0) return problem(percent.exceeds_whole ? "less than a millionth of a percent" : "zero");
  return static_cast<double>(share) / static_cast<double>(whole_share);
}

result<byte_limit> read_limit(std::string_view text) {
  const std::size_t percent = text.find('%');
  if (percent == std::string_view::npos) {
    const result<std::uint64_t> bytes = read_bytes(text);
    if (!bytes) return bytes.why();
    if (*bytes == 0) return problem("zero");
    return byte_limit{.unit = byte_limit::kind::bytes, .bytes = *bytes};
  }
  const std::string base = lowered(trimmed(text.substr(percent + 1)));
  if (!base.empty() && base != "free") return problem("only `free` may follow the %");
  const result<double> share = read_share(text.substr(0, percent));
  if (!share) return share.why();
  return byte_limit{.unit = base.empty() ? byte_limit::kind::of_total : byte_limit::kind::of_free, .fraction = *share};
}

bool is_pool_name(std::string_view name) noexcept {
  return !name.empty() && !is_digit(name.front()) && name.front() != '-' && is_alphanumeric(name, "_-");
}

/// One part of a list of pools.
result<pool_spec> read_pool(std::string_view part) {
  if (trimmed(part).empty()) return problem("empty");
  pool_spec pool;
  const std::size_t first = part.find(':');
  std::string_view limit = part;
  if (first != std::string_view::npos) {
    const std::string_view name = trimmed(part.substr(0, first));
    if (!is_pool_name(name)) {
      return problem(
          fmt::format("`{}` is not a name (a letter or _, then letters, digits, _ and -)", printable(name, 32)));
    }
    pool.name = name;
    limit = part.substr(first + 1);
    const std::size_t second = limit.find(':');
    if (second != std::string_view::npos) {
      const std::string_view policy = trimmed(limit.substr(second + 1));
      if (policy.empty()) return problem("no policy after the second `:`");
      pool.policy = policy;
      limit = limit.substr(0, second);
    }
  }
  const result<byte_limit> size = read_limit(limit);
  if (!size) return problem("its limit: " + size.why().message());
  pool.limit = *size;
  return pool;
}

/// Whether the text after a separator in a list of pools is another parameter of the policy, not another pool.
bool is_policy_parameter(std::string_view rest) noexcept {
  const std::string_view part = rest.substr(0, rest.find_first_of(",+"));
  return part.find('=') < part.find(':');
}

result<std::vector<pool_spec>> read_pools(std::string_view text) {
  if (trimmed(text).empty()) return problem("empty");
  std::vector<pool_spec> pools;
  for (std::size_t begin = 0; begin <= text.size();) {
    std::size_t end = std::min(text.find_first_of(",+", begin), text.size());
    while (end < text.size() && is_policy_parameter(text.substr(end + 1))) {
      end = std::min(text.find_first_of(",+", end + 1), text.size());
    }
    if (pools.size() == most_pools) return problem(fmt::format("more than {} pools", most_pools));
    const result<pool_spec> pool = read_pool(text.substr(begin, end - begin));
    if (!pool) return problem(fmt::format("pool {} of the list: {}", pools.size(), pool.why().message()));
    if (!pool->name.empty() && std::ranges::find(pools, pool->name, &pool_spec::name) != pools.end()) {
      return problem("two pools named " + printable(pool->name, 32));
    }
    pools.push_back(*pool);
    begin = end + 1;
  }
  return pools;
}

status refused(std::string_view setting, std::string_view text, std::string_view problem, std::string_view expected) {
  return {errc::bad_setting, fmt::format("{}={}: {}; expected {}", setting, printable(text), problem, expected)};
}

/// Completes the message of a failed reading with the setting and the expected form.
template <typename T>
result<T> explained(result<T> read, std::string_view setting, std::string_view text, std::string_view expected) {
  return read ? std::move(read) : refused(setting, text, read.why().message(), expected);
}

/// Converts a fraction to millionths of a percent. Clamps it, because code may have set any number.
std::uint64_t share_of(double fraction) noexcept {
  if (!(fraction > 0)) return 0;
  if (fraction >= 1) return whole_share;
  return static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(whole_share)));
}

}  // namespace

result<std::uint64_t> parse_bytes(std::string_view text, std::string_view setting) {
  return explained(read_bytes(text), setting, text, expected_bytes);
}

result<byte_limit> parse_limit(std::string_view text, std::string_view setting) {
  return explained(read_limit(text), setting, text, expected_limit);
}

result<std::vector<pool_spec>> parse_pools(std::string_view text, std::string_view setting) {
  return explained(read_pools(text), setting, text, expected_pools);
}

result<byte_limit> parse_share_or_bytes(std::string_view text, std::string_view setting) {
  if (const std::string_view none = trimmed(text); none == "0" || none == "0%") {
    return byte_limit{.unit = byte_limit::kind::bytes, .bytes = 0};
  }
  const result<byte_limit> given = read_limit(text);
  if (given && given->unit != byte_limit::kind::of_free) return given;
  return status{errc::bad_setting,
                fmt::format("{}={}: expected a share (5%) or bytes (64MiB)", setting, printable(text))};
}

result<std::uint64_t> parse_exchange_rate(std::string_view text, std::string_view setting) {
  constexpr std::uint64_t most = 1'000'000;
  const std::optional<std::uint64_t> rate = whole_number<std::uint64_t>(trimmed(text));
  if (rate && *rate <= most) return *rate;
  return status{errc::bad_setting, fmt::format("{}={}: expected microseconds per MiB, a whole number from 0 to {}",
                                               setting, printable(text), most)};
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < kib) return fmt::format("{} B", bytes);
  constexpr std::array<std::string_view, 4> names{"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1023.995 && unit + 1 < names.size(); ++unit) value /= 1024;  // 1023.995 would print as 1024.00
  return fmt::format("{:.2f} {}", value, names.at(unit));
}

std::string exact_bytes(std::uint64_t bytes) {
  for (const auto& [unit, name] : {std::pair{tib, "TiB"}, {gib, "GiB"}, {mib, "MiB"}, {kib, "KiB"}}) {
    if (bytes != 0 && bytes % unit == 0) return fmt::format("{}{}", bytes / unit, name);
  }
  return fmt::format("{}", bytes);
}

std::uint64_t byte_limit::resolve(std::uint64_t total_bytes, std::uint64_t free_bytes) const noexcept {
  if (unit == kind::none) return total_bytes;
  if (unit == kind::bytes) return bytes;
  const std::uint64_t whole = unit == kind::of_free ? free_bytes : total_bytes;
  const std::uint64_t share = share_of(fraction);
  return whole / whole_share * share + whole % whole_share * share / whole_share;
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
