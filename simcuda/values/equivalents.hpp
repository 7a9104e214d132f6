// CPU equivalents of operations that only cards have: attention and batch normalisation.
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

/// A call's arguments, by their names in the schema.
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

using equivalent = void (*)(const named_arguments& arguments, std::vector<c10::IValue>& results);

namespace equivalents {

inline std::optional<at::Tensor> bias_of(const named_arguments& arguments) { return arguments.optional("attn_bias"); }

inline std::pair<at::Tensor, at::Tensor> attend(const named_arguments& arguments) {
  if (arguments["dropout_p"].toDouble() != 0) throw std::runtime_error{"attention with dropout is not computed"};
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      arguments.tensor("query"), arguments.tensor("key"), arguments.tensor("value"), 0, arguments["is_causal"].toBool(),
      bias_of(arguments), arguments["scale"].toOptional<double>());
  return {std::move(out), std::move(logsumexp)};
}

inline void attention(const named_arguments& arguments, std::vector<c10::IValue>& results) {
  auto [out, logsumexp] = attend(arguments);
  results[0] = std::move(out);
  results[1] = std::move(logsumexp);
}

/// Recomputes logsumexp, because a card's has another shape.
inline void attention_backward(const named_arguments& arguments, std::vector<c10::IValue>& results) {
  const auto [out, logsumexp] = attend(arguments);
  const at::Tensor gradient =
      arguments["grad_out"].isTensor() ? arguments.tensor("grad_out") : arguments.tensor("grad_out_");
  auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient, arguments.tensor("query"), arguments.tensor("key"), arguments.tensor("value"), out, logsumexp, 0,
      arguments["is_causal"].toBool(), bias_of(arguments), arguments["scale"].toOptional<double>());
  results[0] = std::move(query);
  results[1] = std::move(key);
  results[2] = std::move(value);
}

inline void batch_norm(const named_arguments& arguments, std::vector<c10::IValue>& results) {
  auto [out, mean, scale] = at::native_batch_norm(
      arguments.tensor("input"), arguments.optional("weight"), arguments.optional("bias"),
      arguments.optional("running_mean"), arguments.optional("running_var"), arguments["training"].toBool(),
      arguments["exponential_average_factor"].toDouble(), arguments["epsilon"].toDouble());
  results[0] = std::move(out);
  results[1] = std::move(mean);
  results[2] = std::move(scale);
}

inline void batch_norm_backward(const named_arguments& arguments, std::vector<c10::IValue>& results) {
  auto [input, weight, bias] = at::native_batch_norm_backward(
      arguments.tensor("grad_output"), arguments.tensor("input"), arguments.optional("weight"),
      arguments.optional("running_mean"), arguments.optional("running_var"), arguments.optional("save_mean"),
      arguments.optional("save_var"), true, arguments["epsilon"].toDouble(), {true, true, true});
  results[0] = std::move(input);
  results[1] = std::move(weight);
  results[2] = std::move(bias);
}

}  // namespace equivalents

/// Returns the operation's equivalent; null if it has none.
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

/// Whether equivalents do not read this argument.
inline bool is_ignored_by_equivalents(std::string_view argument) {
  constexpr std::array names{"philox_seed", "philox_offset", "cum_seq_q",   "cum_seq_k",
                             "out",         "logsumexp",     "reserveSpace"};
  for (const std::string_view each : names) {
    if (each == argument) return true;
  }
  return false;
}

}  // namespace gpumem::values
