#include "nccl_values.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

namespace gpumem::simcuda {
namespace {

/// A floating-point format of 8 or 16 bits.
struct small_format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  [[nodiscard]] constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  [[nodiscard]] constexpr unsigned largest_exponent() const { return (1U << exponent_bits) - 1; }
  [[nodiscard]] constexpr unsigned largest_mantissa() const { return (1U << mantissa_bits) - 1; }
};
constexpr small_format half{5, 10, true};
constexpr small_format bfloat16{8, 7, true};
constexpr small_format float8_e4m3{4, 3, false};  // all bits set is its only NaN
constexpr small_format float8_e5m2{5, 2, true};

double decode(unsigned bits, const small_format& format) {
  const unsigned mantissa = bits & format.largest_mantissa();
  const unsigned exponent = (bits >> format.mantissa_bits) & format.largest_exponent();
  const double sign = (bits >> (format.mantissa_bits + format.exponent_bits)) != 0 ? -1 : 1;
  if (exponent == format.largest_exponent()) {
    if (format.has_infinity) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
    if (mantissa == format.largest_mantissa()) return std::nan("");
  }
  const double whole = exponent == 0 ? mantissa : mantissa + std::ldexp(1, format.mantissa_bits);
  return sign * std::ldexp(whole, std::max(static_cast<int>(exponent), 1) - format.bias() - format.mantissa_bits);
}

/// Rounds to nearest, ties to even.
unsigned encode(double value, const small_format& format) {
  const unsigned sign = std::signbit(value) ? 1U << (format.mantissa_bits + format.exponent_bits) : 0;
  const unsigned infinite = format.largest_exponent() << format.mantissa_bits;
  const unsigned not_a_number = infinite | format.largest_mantissa();
  const unsigned overflow = sign | (format.has_infinity ? infinite : not_a_number);
  if (std::isnan(value)) return sign | not_a_number;
  if (std::isinf(value)) return overflow;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int lowest = 1 - format.bias();
  exponent = std::max(exponent - 1, lowest);
  // In units of the last bit; the implicit bit, if any, carries into the exponent, and so does rounding up.
  const double units = std::nearbyint(std::ldexp(std::fabs(value), format.mantissa_bits - exponent));
  const double bits = units + std::ldexp(exponent - lowest, format.mantissa_bits);
  return bits >= (format.has_infinity ? infinite : not_a_number) ? overflow : sign | static_cast<unsigned>(bits);
}

/// Reads and writes values of a plain type; reductions compute in `Wide`.
template <typename Value, typename Wide>
struct plain_codec {
  using wide = Wide;
  static constexpr std::size_t bytes = sizeof(Value);
  [[nodiscard]] Wide load(const std::byte* source) const {
    Value value{};
    std::memcpy(&value, source, sizeof value);
    return static_cast<Wide>(value);
  }
  void store(std::byte* target, Wide wide_value) const {
    const auto value = static_cast<Value>(wide_value);
    std::memcpy(target, &value, sizeof value);
  }
};

template <typename Bits>
struct small_codec {
  using wide = double;
  static constexpr std::size_t bytes = sizeof(Bits);
  const small_format& format;
  [[nodiscard]] double load(const std::byte* source) const {
    return decode(plain_codec<Bits, unsigned>{}.load(source), format);
  }
  void store(std::byte* target, double value) const {
    plain_codec<Bits, unsigned>{}.store(target, encode(value, format));
  }
};

/// Calls `use` with the codec of a ncclDataType_t. Integers widen to 64 bits, so that sums and products of all integer
/// types wrap without undefined behaviour.
template <typename Use>
auto with_codec(int type, Use&& use) {
  switch (type) {
    case 0:
      return use(plain_codec<std::int8_t, std::int64_t>{});
    case 1:
      return use(plain_codec<std::uint8_t, std::uint64_t>{});
    case 2:
      return use(plain_codec<std::int32_t, std::int64_t>{});
    case 3:
      return use(plain_codec<std::uint32_t, std::uint64_t>{});
    case 4:
      return use(plain_codec<std::int64_t, std::int64_t>{});
    case 5:
      return use(plain_codec<std::uint64_t, std::uint64_t>{});
    case 6:
      return use(small_codec<std::uint16_t>{half});
    case 7:
      return use(plain_codec<float, float>{});
    case 8:
      return use(plain_codec<double, double>{});
    case 9:
      return use(small_codec<std::uint16_t>{bfloat16});
    case 10:
      return use(small_codec<std::uint8_t>{float8_e4m3});
    default:
      return use(small_codec<std::uint8_t>{float8_e5m2});
  }
}

template <typename Value>
Value combine(Value sum, Value next, reduction::kind operation) {
  switch (operation) {
    case reduction::kind::product:
      return sum * next;
    case reduction::kind::maximum:
      return std::max(sum, next);
    case reduction::kind::minimum:
      return std::min(sum, next);
    default:
      return sum + next;
  }
}

template <typename Codec>
void reduce_as(const std::vector<const std::byte*>& parts, std::size_t count, const reduction& how, std::byte* result,
               const Codec& codec) {
  using Wide = typename Codec::wide;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value_of = [&](const std::byte* part) {
      const Wide value = codec.load(part + i * Codec::bytes);
      return how.factor == 1 ? value : static_cast<Wide>(static_cast<double>(value) * how.factor);
    };
    Wide sum = value_of(parts.front());
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      if constexpr (std::is_same_v<Wide, std::int64_t>) {
        const bool wraps = how.operation != reduction::kind::maximum && how.operation != reduction::kind::minimum;
        const Wide next = value_of(parts[rank]);
        sum = wraps ? static_cast<Wide>(
                          combine(static_cast<std::uint64_t>(sum), static_cast<std::uint64_t>(next), how.operation))
                    : combine(sum, next, how.operation);
      } else {
        sum = combine(sum, value_of(parts[rank]), how.operation);
      }
    }
    if (how.operation == reduction::kind::average) sum /= static_cast<Wide>(parts.size());
    codec.store(result + i * Codec::bytes, sum);
  }
}

}  // namespace

std::size_t value_bytes(int type) {
  constexpr std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && static_cast<std::size_t>(type) < std::size(sizes) ? sizes[type] : 0;
}

double number_at(const std::byte* value, int type) {
  return with_codec(type, [value](const auto& codec) { return static_cast<double>(codec.load(value)); });
}

std::vector<std::byte> reduce_values(const std::vector<const std::byte*>& parts, std::size_t count, int type,
                                     const reduction& how) {
  std::vector<std::byte> values(count * value_bytes(type));
  with_codec(type, [&](const auto& codec) { reduce_as(parts, count, how, values.data(), codec); });
  return values;
}

}  // namespace gpumem::simcuda
