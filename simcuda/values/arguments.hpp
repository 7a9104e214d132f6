// An operation's arguments: finds the tensors on cards, and converts the arguments for the CPU.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

#include "card_tensors.hpp"
#include "operation_kinds.hpp"

namespace gpumem::values {

/// Calls `use` for each defined tensor of a tensor or a list; a list may have missing ones.
template <typename Use>
void for_each_tensor(const c10::IValue& value, Use&& use) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) use(value.toTensor());
  } else if (value.isList()) {
    const auto list = value.toListRef();
    for (const c10::IValue& each : list) {
      if (each.isTensor() && each.toTensor().defined()) use(each.toTensor());
    }
  }
}

/// Which list elements an operation on lists (_foreach_add_) computes; empty for other operations, which compute all.
using selection = std::optional<std::vector<bool>>;

inline bool is_computable(const at::Tensor& tensor) {
  return !is_on_card(tensor) || (is_plain(tensor) && is_small(tensor));
}

/// Selects the list elements that can be computed. False if nothing can be.
inline bool select(const c10::IValue* arguments, std::size_t count, bool on_lists, selection& selected) {
  if (on_lists) {
    if (count == 0 || !arguments[0].isList()) return false;
    const std::size_t length = arguments[0].toListRef().size();
    std::vector<bool> chosen(length, true);
    for (std::size_t i = 0; i < count; ++i) {
      if (arguments[i].isTensor() && !is_computable(arguments[i].toTensor())) return false;
      if (!arguments[i].isTensorList()) continue;
      const auto list = arguments[i].toListRef();
      if (list.size() != length) return false;
      for (std::size_t k = 0; k < length; ++k) chosen[k] = chosen[k] && is_computable(list[k].toTensor());
    }
    if (std::find(chosen.begin(), chosen.end(), true) == chosen.end()) return false;
    selected = std::move(chosen);
    return true;
  }
  bool all = true;
  for (std::size_t i = 0; i < count && all; ++i) {
    for_each_tensor(arguments[i], [&](const at::Tensor& each) { all = all && is_computable(each); });
  }
  return all;
}

/// In a list with large tensors, computes small ones only from true arguments: in training, most of them are gradients
/// that come from large ones. False if none is left.
inline bool keep_true_ones(const std::vector<c10::IValue>& arguments, selection& chosen) {
  if (!chosen.has_value() || std::find(chosen->begin(), chosen->end(), false) == chosen->end()) return true;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensorList()) continue;
    const auto list = argument.toListRef();
    for (std::size_t k = 0; k < list.size(); ++k) {
      const at::Tensor& tensor = list[k].toTensor();
      if ((*chosen)[k] && is_on_card(tensor)) (*chosen)[k] = make_readable(tensor);
    }
  }
  return std::find(chosen->begin(), chosen->end(), true) != chosen->end();
}

/// Returns the first tensor on a card; undefined if there is none.
inline at::Tensor first_on_card(const std::vector<c10::IValue>& arguments) {
  at::Tensor first;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& each) {
      if (!first.defined() && is_on_card(each)) first = each;
    });
  }
  return first;
}

inline at::Tensor for_host(const at::Tensor& tensor) { return is_on_card(tensor) ? host_view(tensor) : tensor; }

/// Converts an argument for the CPU: tensors over the same memory, lists with only the chosen elements.
inline c10::IValue for_host(const c10::IValue& value, const selection& chosen) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue{for_host(value.toTensor())} : value;
  if (value.isDevice()) return at::Device{at::kCPU};
  if (!value.isList()) return value;
  const auto list = value.toListRef();
  const bool tensors = std::any_of(list.begin(), list.end(), [](const c10::IValue& each) { return each.isTensor(); });
  const bool filtered = chosen.has_value() && list.size() == chosen->size();
  if (!tensors && !filtered) return value;
  c10::impl::GenericList elements{value.toList().elementType()};
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (filtered && !(*chosen)[i]) continue;
    const c10::IValue& each = list[i];
    const bool tensor = each.isTensor() && each.toTensor().defined();
    elements.push_back(tensor ? c10::IValue{for_host(each.toTensor())} : each);
  }
  return elements;
}

/// Clamps untrue integer indices to the valid range, if the operation's schema determines it. Returns how many changed.
inline std::uint64_t clamp_indices(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& originals,
                                   std::vector<c10::IValue>& host) {
  std::uint64_t changed = 0;
  std::int64_t dimension = 0;
  if (host.empty() || !host[0].isTensor()) return 0;
  const at::Tensor self = host[0].toTensor();
  const auto clamp = [&](const at::Tensor& index, const at::Tensor& original, std::int64_t limit) {
    if (!at::isIntegralType(index.scalar_type(), false) || limit <= 0) return index;
    if (!is_on_card(original) || make_readable(original)) return index;
    const at::Tensor inside = index.clamp(0, limit - 1);
    changed += static_cast<std::uint64_t>(index.ne(inside).sum().item<std::int64_t>());
    return inside;
  };
  for (std::size_t i = 0; i < host.size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    if (name == "dim" && host[i].isInt() && self.dim() > 0) dimension = at::maybe_wrap_dim(host[i].toInt(), self.dim());
    if (name == "target" && host[i].isTensor() && self.dim() > 0) {
      host[i] = clamp(host[i].toTensor(), originals[i].toTensor(), self.size(self.dim() > 1 ? 1 : 0));
    } else if ((name == "index" || name == "indices") && host[i].isTensor()) {
      const bool flat = schema.name() == "aten::take" || schema.name() == "aten::put_";
      const std::int64_t limit = flat ? self.numel() : self.dim() > 0 ? self.size(dimension) : 1;
      host[i] = clamp(host[i].toTensor(), originals[i].toTensor(), limit);
    } else if (name == "indices" && host[i].isList()) {
      c10::impl::GenericList clamped{host[i].toList().elementType()};
      const auto list = host[i].toListRef();
      for (std::size_t k = 0; k < list.size(); ++k) {
        const bool tensor = list[k].isTensor() && list[k].toTensor().defined();
        const std::int64_t limit =
            static_cast<std::int64_t>(k) < self.dim() ? self.size(static_cast<std::int64_t>(k)) : 0;
        clamped.push_back(tensor ? c10::IValue{clamp(list[k].toTensor(), originals[i].toListRef()[k].toTensor(), limit)}
                                 : list[k]);
      }
      host[i] = clamped;
    }
  }
  return changed;
}

}  // namespace gpumem::values
