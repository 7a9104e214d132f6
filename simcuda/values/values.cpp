// Computes the values of PyTorch's small operations on simulated cards: wraps each CUDA kernel, runs it for its memory
// requests, and then runs the CPU's kernel over the same memory.
#include <torch/library.h>

#include <memory>
#include <string>
#include <string_view>

#include "computed_operation.hpp"

namespace gpumem::values {
namespace {

int wrap_all() {
  no_warnings silent;  // PyTorch warns once about a kernel that is registered again
  const c10::WarningUtils::WarningHandlerGuard guard{&silent};
  static torch::Library only{torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  int wrapped = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!std::string_view{name.name}.starts_with("aten::")) continue;
    const auto operation = dispatcher.findSchema(name);
    if (!operation.has_value()) continue;
    const bool for_cards = operation->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
    if (!for_cards && !is_computed_whole(name.name)) continue;
    if (is_left_alone(name.name) || is_view(operation->schema())) continue;
    std::string own = name.name.substr(std::string_view{"aten::"}.size());
    if (!name.overload_name.empty()) own += "." + name.overload_name;
    only.impl(own.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<computed_operation>(*operation)));
    ++wrapped;
  }
  return wrapped;
}

}  // namespace
}  // namespace gpumem::values

/// Computes operations on tensors of at most `elements` from now on. Returns how many operations are wrapped; -1 on
/// failure, with the reason in `error`, which has room for `size` bytes.
extern "C" __attribute__((visibility("default"))) int gpumem_compute_values(std::int64_t elements, char* error,
                                                                            std::size_t size) {
  using namespace gpumem::values;  // NOLINT: the one function
  try {
    constexpr std::int64_t largest_element = 16;
    bound_elements = elements;
    static const int wrapped = wrap_all();
    driver().compute_values(static_cast<std::uint64_t>(elements * largest_element));
    return wrapped;
  } catch (const std::exception& wrong) {
    std::string{wrong.what()}.copy(error, size - 1);
    return -1;
  }
}
