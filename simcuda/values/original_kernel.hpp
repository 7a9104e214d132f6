// The kernel that an operation has for cards before it is wrapped, in each version of PyTorch.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

namespace gpumem::values {

auto& definition_of(const c10::OperatorHandle& operation);

/// Defines `definition_of`. The explicit instantiation below may name the private member `operatorDef_`.
template <auto Definition>
struct definition_access {
  friend auto& definition_of(const c10::OperatorHandle& operation) { return *(operation.*Definition); }
};
template struct definition_access<&c10::OperatorHandle::operatorDef_>;

/// Returns the kernel, which stays valid when another one is registered. Earlier versions of PyTorch, such as 2.6, have
/// no function for it.
template <typename Operation>
auto kernel_for_cards(const Operation& operation) {
  constexpr c10::DispatchKey key = c10::DispatchKey::CUDA;
  if constexpr (requires { operation.getComputedKernelForDispatchKey(key); }) {
    return operation.getComputedKernelForDispatchKey(key);
  } else {
    return c10::KernelFunction{definition_of(operation).op.lookup(c10::DispatchKeySet{key})};
  }
}

using original_kernel = decltype(kernel_for_cards(std::declval<const c10::OperatorHandle&>()));

}  // namespace gpumem::values
