/// Values of NCCL's types, and reductions of them.
#pragma once

#include <cstddef>
#include <vector>

namespace gpumem::simcuda {

/// Returns the bytes of a value of a ncclDataType_t; 0 for an unknown type.
std::size_t value_bytes(int type);

/// A ncclRedOp_t. A reduction that the program created first multiplies each rank's values by `factor`.
struct reduction {
  enum class kind { sum, product, maximum, minimum, average };
  kind operation = kind::sum;
  double factor = 1;
};

/// Returns a value of the type as a number.
double number_at(const std::byte* value, int type);

/// Reduces `count` values of each rank, in the order of the ranks.
std::vector<std::byte> reduce_values(const std::vector<const std::byte*>& parts, std::size_t count, int type,
                                     const reduction& how);

}  // namespace gpumem::simcuda
