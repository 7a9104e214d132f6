/// Values of NCCL's types, and what its reductions make of them.
#pragma once

#include <cstddef>
#include <vector>

namespace gpumem::simcuda {

/// Bytes of a value of a ncclDataType_t; 0 for an unknown type.
std::size_t value_bytes(int type);

/// A ncclRedOp_t. One that the program created multiplies each rank's values first.
struct reduction {
  enum class kind { sum, product, maximum, minimum, average };
  kind operation = kind::sum;
  double factor = 1;
};

/// A value of the type as a number.
double number_at(const std::byte* value, int type);

/// Reduces the ranks' values, of `count` each, in the order of the ranks.
std::vector<std::byte> reduce_values(const std::vector<const std::byte*>& parts, std::size_t count, int type,
                                     const reduction& how);

}  // namespace gpumem::simcuda
