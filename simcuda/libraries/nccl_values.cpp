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

template <typename Bits>
double load_small(const std::byte* value, const small_format& format) {
  Bits bits{};
  std::memcpy(&bits, value, sizeof bits);
  return decode(bits, format);
}
template <typename Bits>
void store_small(std::byte* result, double value, const small_format& format) {
  const auto bits = static_cast<Bits>(encode(value, format));
  std::memcpy(result, &bits, sizeof bits);
}

template <typename Value>
Value load_plain(const std::byte* value) {
  Value values{};
  std::memcpy(&values, value, sizeof values);
  return values;
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

/// Computes in 64 bits, so that sums and products of all integer types wrap without undefined behaviour.
template <typename Wide, typename Load, typename Store>
void reduce_as(const std::vector<const std::byte*>& parts, std::size_t count, std::size_t size, const reduction& how,
               std::byte* result, Load load, Store store) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto value_of = [&](const std::byte* part) {
      const Wide value = load(part + i * size);
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
    store(result + i * size, sum);
  }
}

template <typename Value, typename Wide>
void reduce_plain(const std::vector<const std::byte*>& parts, std::size_t count, const reduction& how,
                  std::byte* result) {
  const auto load = [](const std::byte* value) { return static_cast<Wide>(load_plain<Value>(value)); };
  const auto store = [](std::byte* target, Wide value) {
    const auto narrow = static_cast<Value>(value);
    std::memcpy(target, &narrow, sizeof narrow);
  };
  reduce_as<Wide>(parts, count, sizeof(Value), how, result, load, store);
}

template <typename Bits>
void reduce_small(const std::vector<const std::byte*>& parts, std::size_t count, const reduction& how,
                  std::byte* result, const small_format& format) {
  const auto load = [&format](const std::byte* value) { return load_small<Bits>(value, format); };
  const auto store = [&format](std::byte* target, double value) { store_small<Bits>(target, value, format); };
  reduce_as<double>(parts, count, sizeof(Bits), how, result, load, store);
}

}  // namespace

std::size_t value_bytes(int type) {
  constexpr std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && static_cast<std::size_t>(type) < std::size(sizes) ? sizes[type] : 0;
}

double number_at(const std::byte* value, int type) {
  switch (type) {
    case 0:
      return load_plain<std::int8_t>(value);
    case 1:
      return load_plain<std::uint8_t>(value);
    case 2:
      return load_plain<std::int32_t>(value);
    case 3:
      return load_plain<std::uint32_t>(value);
    case 4:
      return static_cast<double>(load_plain<std::int64_t>(value));
    case 5:
      return static_cast<double>(load_plain<std::uint64_t>(value));
    case 6:
      return load_small<std::uint16_t>(value, half);
    case 7:
      return load_plain<float>(value);
    case 8:
      return load_plain<double>(value);
    case 9:
      return load_small<std::uint16_t>(value, bfloat16);
    case 10:
      return load_small<std::uint8_t>(value, float8_e4m3);
    default:
      return load_small<std::uint8_t>(value, float8_e5m2);
  }
}

std::vector<std::byte> reduce_values(const std::vector<const std::byte*>& parts, std::size_t count, int type,
                                     const reduction& how) {
  std::vector<std::byte> values(count * value_bytes(type));
  std::byte* const result = values.data();
  switch (type) {
    case 0:
      reduce_plain<std::int8_t, std::int64_t>(parts, count, how, result);
      break;
    case 1:
      reduce_plain<std::uint8_t, std::uint64_t>(parts, count, how, result);
      break;
    case 2:
      reduce_plain<std::int32_t, std::int64_t>(parts, count, how, result);
      break;
    case 3:
      reduce_plain<std::uint32_t, std::uint64_t>(parts, count, how, result);
      break;
    case 4:
      reduce_plain<std::int64_t, std::int64_t>(parts, count, how, result);
      break;
    case 5:
      reduce_plain<std::uint64_t, std::uint64_t>(parts, count, how, result);
      break;
    case 6:
      reduce_small<std::uint16_t>(parts, count, how, result, half);
      break;
    case 7:
      reduce_plain<float, float>(parts, count, how, result);
      break;
    case 8:
      reduce_plain<double, double>(parts, count, how, result);
      break;
    case 9:
      reduce_small<std::uint16_t>(parts, count, how, result, bfloat16);
      break;
    case 10:
      reduce_small<std::uint8_t>(parts, count, how, result, float8_e4m3);
      break;
    default:
      reduce_small<std::uint8_t>(parts, count, how, result, float8_e5m2);
      break;
  }
  return values;
}

}  // namespace gpumem::simcuda
