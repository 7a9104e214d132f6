// Decides which operations are computed, and how.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace gpumem::values {

enum class operation_kind {
  usual,       ///< the same operation on host tensors over the card's memory
  copies,      ///< copy_: computes the copies that the driver's copies do not make
  counted,     ///< reads back its result, or the result's size, so it is computed first
  fills_zero,  ///< fills large results with zeros without touching their memory
  drops,       ///< native_dropout, whose CPU form uses the CPU's generator
};

/// Whether an operation is not wrapped: it only allocates, does not access the tensor's bytes, or reads a value itself.
inline bool is_left_alone(std::string_view name) {
  constexpr std::array begins{"aten::empty",
                              "aten::new_empty",
                              "aten::set_",
                              "aten::resize_",
                              "aten::record_stream",
                              "aten::is_pinned",
                              "aten::_pin_memory",
                              "aten::_local_scalar_dense",
                              "aten::_reshape_alias",
                              "aten::is_set_to",
                              "aten::_cudnn_init_dropout_state"};
  return std::any_of(begins.begin(), begins.end(), [&](std::string_view each) { return name.starts_with(each); });
}

/// Whether a CPU kernel does not check the indices in its arguments: computed only if all of them are true.
inline bool trusts_indices(std::string_view name) {
  if (name.find("max_pool") != std::string_view::npos && name.ends_with("_backward")) return true;
  constexpr std::array begins{
      "aten::max_unpool", "aten::_ctc_loss", "aten::_segment_reduce", "aten::segment_reduce", "aten::_embedding_bag",
      "aten::lu_unpack",  "aten::linalg_lu", "aten::linalg_ldl",      "aten::_pack_padded",   "aten::ormqr"};
  return std::any_of(begins.begin(), begins.end(), [&](std::string_view each) { return name.starts_with(each); });
}

/// Whether an operation is registered for all devices, although its values come from kernels that only a card has.
inline bool is_computed_whole(std::string_view name) {
  constexpr std::array names{"aten::copy_", "aten::convolution", "aten::convolution_backward"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline operation_kind kind_of(std::string_view name) {
  constexpr std::array counted{"aten::equal",
                               "aten::nonzero",
                               "aten::_unique",
                               "aten::_unique2",
                               "aten::unique_dim",
                               "aten::unique_consecutive",
                               "aten::unique_dim_consecutive"};
  if (name == "aten::copy_") return operation_kind::copies;
  if (name == "aten::native_dropout") return operation_kind::drops;
  if (name == "aten::zero_" || name == "aten::fill_") return operation_kind::fills_zero;
  return std::find(counted.begin(), counted.end(), name) != counted.end() ? operation_kind::counted
                                                                          : operation_kind::usual;
}

/// Whether an operation returns a view of its argument, which has no values of its own.
inline bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& each : schema.returns()) {
    if (each.alias_info() != nullptr && !each.alias_info()->isWrite()) return true;
  }
  return false;
}

inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace gpumem::values
