// Operations that only cards have, as the CPU computes the same: attention and the normalisation of batches.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace gpumem::values {

/// The arguments of a call, by their names in the schema.
class named_arguments {
 public:
  named_arguments(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& values)
      : schema_{schema}, values_{values} {}

  [[nodiscard]] const c10::IValue& operator[](std::string_view name) const {
    static const c10::IValue none;
    const auto& arguments = schema_.arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() == name) return values_[i];
    }
    return none;
  }
  [[nodiscard]] at::Tensor tensor(std::string_view name) const { return (*this)[name].toTensor(); }
  [[nodiscard]] std::optional<at::Tensor> optional(std::string_view name) const {
    const c10::IValue& value = (*this)[name];
    return value.isTensor() && value.toTensor().defined() ? std::optional{value.toTensor()} : std::nullopt;
  }

 private:
  const c10::FunctionSchema& schema_;
  const std::vector<c10::IValue>& values_;
};

using equivalent = void (*)(const named_arguments& from, std::vector<c10::IValue>& results);

namespace equivalents {

inline std::optional<at::Tensor> bias_of(const named_arguments& from) { return from.optional("attn_bias"); }

inline std::pair<at::Tensor, at::Tensor> attend(const named_arguments& from) {
  if (from["dropout_p"].toDouble() != 0) throw std::runtime_error{"attention with dropout is not computed"};
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      from.tensor("query"), from.tensor("key"), from.tensor("value"), 0, from["is_causal"].toBool(), bias_of(from),
      from["scale"].toOptional<double>());
  return {std::move(out), std::move(logsumexp)};
}

inline void attention(const named_arguments& from, std::vector<c10::IValue>& results) {
  auto [out, logsumexp] = attend(from);
  results[0] = std::move(out);
  results[1] = std::move(logsumexp);
}

/// The CPU's own sums are made anew: a card's have another shape.
inline void attention_backward(const named_arguments& from, std::vector<c10::IValue>& results) {
  const auto [out, logsumexp] = attend(from);
  const at::Tensor gradient = from["grad_out"].isTensor() ? from.tensor("grad_out") : from.tensor("grad_out_");
  auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient, from.tensor("query"), from.tensor("key"), from.tensor("value"), out, logsumexp, 0,
      from["is_causal"].toBool(), bias_of(from), from["scale"].toOptional<double>());
  results[0] = std::move(query);
  results[1] = std::move(key);
  results[2] = std::move(value);
}

inline void batch_norm(const named_arguments& from, std::vector<c10::IValue>& results) {
  auto [out, mean, scale] =
      at::native_batch_norm(from.tensor("input"), from.optional("weight"), from.optional("bias"),
                            from.optional("running_mean"), from.optional("running_var"), from["training"].toBool(),
                            from["exponential_average_factor"].toDouble(), from["epsilon"].toDouble());
  results[0] = std::move(out);
  results[1] = std::move(mean);
  results[2] = std::move(scale);
}

inline void batch_norm_backward(const named_arguments& from, std::vector<c10::IValue>& results) {
  auto [input, weight, bias] = at::native_batch_norm_backward(
      from.tensor("grad_output"), from.tensor("input"), from.optional("weight"), from.optional("running_mean"),
      from.optional("running_var"), from.optional("save_mean"), from.optional("save_var"), true,
      from["epsilon"].toDouble(), {true, true, true});
  results[0] = std::move(input);
  results[1] = std::move(weight);
  results[2] = std::move(bias);
}

}  // namespace equivalents

/// Null: the operation has none.
inline equivalent equivalent_of(std::string_view name) {
  using entry = std::pair<std::string_view, equivalent>;
  constexpr std::array<entry, 8> all{{
      {"aten::_scaled_dot_product_flash_attention", equivalents::attention},
      {"aten::_scaled_dot_product_efficient_attention", equivalents::attention},
      {"aten::_scaled_dot_product_cudnn_attention", equivalents::attention},
      {"aten::_scaled_dot_product_flash_attention_backward", equivalents::attention_backward},
      {"aten::_scaled_dot_product_efficient_attention_backward", equivalents::attention_backward},
      {"aten::_scaled_dot_product_cudnn_attention_backward", equivalents::attention_backward},
      {"aten::cudnn_batch_norm", equivalents::batch_norm},
      {"aten::cudnn_batch_norm_backward", equivalents::batch_norm_backward},
  }};
  for (const entry& each : all) {
    if (each.first == name) return each.second;
  }
  return nullptr;
}

/// What an equivalent does not read.
inline bool is_ignored_by_equivalents(std::string_view argument) {
  constexpr std::array names{"philox_seed", "philox_offset", "cum_seq_q",   "cum_seq_k",
                             "out",         "logsumexp",     "reserveSpace"};
  for (const std::string_view each : names) {
    if (each == argument) return true;
  }
  return false;
}

}  // namespace gpumem::values
