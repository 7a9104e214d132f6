// A computed CUDA kernel: runs the original, which makes the same memory requests, then the CPU's kernel over the same
// memory, and marks the true values.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "card_tensors.hpp"
#include "driver_calls.hpp"
#include "equivalents.hpp"
#include "host_scope.hpp"
#include "operation_kinds.hpp"
#include "original_kernel.hpp"
#include "random_values.hpp"

namespace gpumem::values {

using stack_of_values = torch::jit::Stack;

inline thread_local std::uint64_t computed_here = 0;  ///< operations computed by this thread
/// Storages that an operation on lists changes in place; while its original runs, it may change them one by one.
inline thread_local const std::vector<const void*>* changed_by_list = nullptr;

class computed_operation final : public c10::OperatorKernel {
 public:
  explicit computed_operation(const c10::OperatorHandle& operation)
      : original_{kernel_for_cards(operation)},
        kind_{kind_of(operation.schema().name())},
        equivalent_{equivalent_of(operation.schema().name())},
        on_host_{equivalent_ != nullptr || operation.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)},
        on_lists_{operation.schema().name().starts_with("aten::_foreach_")},
        random_{operation.hasTag(at::Tag::nondeterministic_seeded)},
        sized_by_values_{operation.hasTag(at::Tag::dynamic_output_shape)},
        trusting_{trusts_indices(operation.schema().name())} {
    const auto& arguments = operation.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      // Running statistics of a normalisation are written, too, although its schema does not say so.
      const bool running =
          arguments[i].name().starts_with("running_") && !operation.schema().name().ends_with("backward");
      if (is_written(arguments[i]) || running) written_.push_back({i, arguments[i].kwarg_only()});
      if (equivalent_ != nullptr && is_ignored_by_equivalents(arguments[i].name())) ignored_.push_back(i);
      if (arguments[i].name() == "generator") generator_ = static_cast<int>(i);
      if (arguments[i].name() == "pin_memory") pinned_ = static_cast<int>(i);
    }
    const bool by_hand = kind_ == operation_kind::drops || equivalent_ != nullptr;
    if (random_ && generator_ < 0 && !by_hand) on_host_ = false;
  }

  void operator()(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, stack_of_values* stack) {
    const std::size_t count = operation.schema().arguments().size();
    const c10::IValue* const arguments = stack->data() + (stack->size() - count);
    if (changed_by_list != nullptr && changes_of_list(arguments)) return run_original(operation, keys, stack);
    if (kind_ == operation_kind::copies) return copy(operation, keys, stack, arguments);
    selection chosen;
    if (on_host_ && select(arguments, count, on_lists_, chosen) && driver().anything_captures() == 0) {
      return compute(operation, keys, stack, count, chosen);
    }
    pass_on(operation, keys, stack, arguments);
  }

 private:
  struct written_argument {
    std::size_t index;
    bool is_result;  ///< an out= argument, whose former bytes do not matter
  };

  void run_original(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, stack_of_values* stack) const {
    const operation_scope kernels_are_known;
    original_.callBoxed(operation, keys, stack);
  }

  [[nodiscard]] bool changes_of_list(const c10::IValue* arguments) const {
    return std::any_of(written_.begin(), written_.end(), [&](const written_argument& each) {
      bool any = false;
      for_each_tensor(arguments[each.index], [&](const at::Tensor& tensor) {
        any = any ||
              std::find(changed_by_list->begin(), changed_by_list->end(), storage_of(tensor)) != changed_by_list->end();
      });
      return any;
    });
  }

  /// Runs an operation that is not computed; marks its result as zero and untrue.
  void pass_on(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, stack_of_values* stack,
               const c10::IValue* arguments) const {
    std::vector<std::pair<at::Tensor, bool>> written;
    for (const written_argument& each : written_) {
      for_each_tensor(arguments[each.index],
                      [&](const at::Tensor& tensor) { written.emplace_back(tensor, each.is_result); });
    }
    const bool zeros = kind_ == operation_kind::fills_zero && fills_with_zero(operation, arguments);
    const bool overwritten = random_ || kind_ == operation_kind::fills_zero;
    const std::uint64_t before = computed_here;
    if (kind_ == operation_kind::counted && operation.schema().name() != "aten::equal") {
      const bool any = operation.schema().name() != "aten::nonzero" && arguments[0].toTensor().numel() != 0;
      const answered_scope untrue_size{any ? 1 : 0, false};
      run_original(operation, keys, stack);
    } else {
      run_original(operation, keys, stack);
    }
    const bool parts_computed = computed_here != before;
    for (const auto& [tensor, is_result] : written) {
      set_marks(tensor, {zeros, zeros || overwritten || (is_result && !parts_computed)});
    }
    mark_results(operation, *stack, {false, !parts_computed});
  }

  static bool fills_with_zero(const c10::OperatorHandle& operation, const c10::IValue* arguments) {
    if (operation.schema().name() == "aten::zero_") return true;
    return arguments[1].isScalar() && !arguments[1].toScalar().isSymbolic() && arguments[1].toScalar().equal(0);
  }

  static void mark_results(const c10::OperatorHandle& operation, const stack_of_values& stack, mark value) {
    const auto& returns = operation.schema().returns();
    for (std::size_t i = 0; i < returns.size(); ++i) {
      if (returns[i].alias_info() != nullptr) continue;
      for_each_tensor(stack[stack.size() - returns.size() + i],
                      [&](const at::Tensor& each) { set_marks(each, value); });
    }
  }

  void copy(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, stack_of_values* stack,
            const c10::IValue* arguments) const {
    const at::Tensor target = arguments[0].toTensor();
    const at::Tensor source = arguments[1].toTensor();
    run_original(operation, keys, stack);
    if (!is_on_card(target) || !is_on_card(source) || !is_plain(target) || !is_plain(source)) return;
    const bool by_driver = target.scalar_type() == source.scalar_type() && target.sizes() == source.sizes() &&
                           target.is_contiguous() && source.is_contiguous() && target.is_conj() == source.is_conj() &&
                           target.is_neg() == source.is_neg();
    if (by_driver || target.is_same(source)) return;
    if (!is_small(target) || !is_small(source) || driver().anything_captures() != 0) {
      return set_marks(target, {false, target.is_non_overlapping_and_dense()});
    }
    const host_scope host;
    const bool is_true = make_readable(source);
    host_view(target).copy_(host_view(source));
    set_marks(target, {is_true, false});
    ++computed_here;
  }

  /// Writes the arguments' due zeros, so that they can be read. Returns whether all values are true.
  bool read_arguments(const std::vector<c10::IValue>& arguments, const selection& chosen) const {
    bool all_true = true;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const bool overwritten = std::any_of(written_.begin(), written_.end(), [&](const written_argument& each) {
        const bool whole = random_ || kind_ == operation_kind::fills_zero;
        return each.index == i && (each.is_result || whole);
      });
      if (overwritten || std::find(ignored_.begin(), ignored_.end(), i) != ignored_.end()) continue;
      std::size_t index = 0;
      const bool list = chosen.has_value() && arguments[i].isTensorList();
      for_each_tensor(arguments[i], [&](const at::Tensor& each) {
        const bool read = !list || (*chosen)[index++];
        if (read && is_on_card(each)) all_true = make_readable(each) && all_true;
      });
    }
    return all_true;
  }

  /// Copies the arguments that are changed in place. The original may change some through other operations, and the
  /// change must apply once.
  std::vector<std::pair<at::Tensor, at::Tensor>> keep_changed(const std::vector<c10::IValue>& arguments) const {
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;
    for (const written_argument& each : written_) {
      if (each.is_result || on_lists_) continue;
      for_each_tensor(arguments[each.index], [&](const at::Tensor& tensor) {
        if (is_on_card(tensor) && is_computable(tensor) && tensor.numel() != 0) {
          kept.emplace_back(tensor, host_view(tensor).clone());
        }
      });
    }
    return kept;
  }

  std::vector<c10::IValue> host_arguments(const std::vector<c10::IValue>& arguments, const selection& chosen,
                                          std::uint64_t seed) const {
    std::vector<c10::IValue> converted;
    converted.reserve(arguments.size());
    for (const c10::IValue& each : arguments) converted.push_back(for_host(each, chosen));
    if (generator_ >= 0) converted[static_cast<std::size_t>(generator_)] = host_generator(seed);
    if (pinned_ >= 0) converted[static_cast<std::size_t>(pinned_)] = c10::IValue{};
    return converted;
  }

  /// Runs the CPU's kernel. False if there is none, or it refuses the arguments.
  bool run_on_host(const c10::OperatorHandle& operation, const std::vector<c10::IValue>& arguments,
                   const selection& chosen, std::uint64_t seed, stack_of_values& results) {
    std::vector<c10::IValue> host = host_arguments(arguments, chosen, seed);
    try {
      results.assign(host.begin(), host.end());
      if (kind_ == operation_kind::drops) {
        drop(results, seed);
      } else if (equivalent_ != nullptr) {
        results.assign(operation.schema().returns().size(), c10::IValue{});
        equivalent_(named_arguments{operation.schema(), host}, results);
      } else {
        operation.callBoxed(&results);
      }
      failures_ = 0;
      return true;
    } catch (const std::exception&) {
    }
    try {
      const std::uint64_t changed = clamp_indices(operation.schema(), arguments, host);
      if (changed != 0) {
        results.assign(host.begin(), host.end());
        operation.callBoxed(&results);
        driver().note_clamped(changed);
        return true;
      }
    } catch (const std::exception&) {
    }
    // An exception costs more than most operations, so stop trying an operation that always fails.
    constexpr int most_failures = 32;
    if (++failures_ >= most_failures) on_host_ = false;
    return false;
  }

  static void drop(stack_of_values& stack, std::uint64_t seed) {
    const at::Tensor input = stack[0].toTensor();
    const double chance = stack[1].toDouble();
    const bool training = stack[2].isNone() || stack[2].toBool();
    const at::Tensor kept = at::empty(input.sizes(), input.options().dtype(at::kBool));
    kept.bernoulli_(training ? 1 - chance : 1, host_generator(seed));
    const double scale = !training || chance >= 1 ? 1 : 1 / (1 - chance);
    at::Tensor output = input.mul(kept).mul(scale);
    stack.assign({c10::IValue{std::move(output)}, c10::IValue{kept}});
  }

  void compute(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, stack_of_values* stack,
               std::size_t count, selection& chosen) {
    const std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    if (!keep_true_ones(arguments, chosen)) return pass_on(operation, keys, stack, arguments.data());
    const at::Tensor on_card = first_on_card(arguments);
    stack_of_values results;
    bool done = false;
    bool is_true = true;
    std::uint64_t seed = 0;
    std::vector<std::pair<at::Tensor, at::Tensor>> changed;
    {
      const host_scope host;
      is_true = read_arguments(arguments, chosen);
      if (trusting_ && !is_true) return pass_on(operation, keys, stack, arguments.data());
      changed = keep_changed(arguments);
      if (random_) {
        const at::Device card = on_card.defined() ? on_card.device() : at::Device{at::kCUDA, 0};
        seed = seed_of(
            card_generator(generator_ >= 0 ? arguments[static_cast<std::size_t>(generator_)] : c10::IValue{}, card));
      }
      if (kind_ == operation_kind::counted) done = run_on_host(operation, arguments, chosen, seed, results);
    }
    const std::uint64_t before = computed_here;
    if (done) {
      const answered_scope size{size_of_result(operation, arguments, results), is_true};
      run_original(operation, keys, stack);
    } else if (on_lists_ && !written_.empty()) {
      run_on_lists(operation, keys, stack, arguments);
    } else {
      run_original(operation, keys, stack);
    }
    const bool parts_computed = computed_here != before;
    const bool small = results_are_small(operation, *stack, arguments);
    const host_scope host;
    if (parts_computed) {
      for (const auto& [tensor, bytes] : changed) host_view(tensor).copy_(bytes);
    }
    if (small && kind_ != operation_kind::counted) done = run_on_host(operation, arguments, chosen, seed, results);
    ++computed_here;
    finish(operation, *stack, arguments, chosen, results, done && small, is_true);
  }

  void run_on_lists(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, stack_of_values* stack,
                    const std::vector<c10::IValue>& arguments) const {
    std::vector<const void*> changed;
    for (const written_argument& each : written_) {
      for_each_tensor(arguments[each.index], [&](const at::Tensor& tensor) { changed.push_back(storage_of(tensor)); });
    }
    const auto* const outer = std::exchange(changed_by_list, &changed);
    try {
      run_original(operation, keys, stack);
    } catch (...) {
      changed_by_list = outer;
      throw;
    }
    changed_by_list = outer;
  }

  /// Returns the count that an operation reads back: the rows of the result whose size depends on values.
  static std::int64_t size_of_result(const c10::OperatorHandle& operation, const std::vector<c10::IValue>& arguments,
                                     const stack_of_values& results) {
    const c10::IValue& first = results[results.size() - operation.schema().returns().size()];
    if (first.isBool()) return first.toBool() ? 1 : 0;
    const at::Tensor& rows = first.toTensor();
    if (rows.dim() == 0) return rows.numel();
    std::int64_t dimension = 0;
    const auto& name = operation.schema().name();
    if (name == "aten::unique_dim" || name == "aten::unique_dim_consecutive") dimension = arguments[1].toInt();
    return rows.size(dimension);
  }

  bool results_are_small(const c10::OperatorHandle& operation, const stack_of_values& stack,
                         const std::vector<c10::IValue>& arguments) const {
    const std::int64_t most = bound_elements * (sized_by_values_ ? 16 : 1);
    bool small = true;
    const auto& returns = operation.schema().returns();
    for (std::size_t i = 0; i < returns.size() && !on_lists_; ++i) {
      for_each_tensor(stack[stack.size() - returns.size() + i], [&](const at::Tensor& each) {
        if (is_on_card(each)) small = small && each.numel() <= most && is_plain(each);
      });
    }
    for (const written_argument& each : written_) {
      if (on_lists_) break;
      for_each_tensor(arguments[each.index], [&](const at::Tensor& tensor) {
        if (is_on_card(tensor)) small = small && tensor.numel() <= most;
      });
    }
    return small;
  }

  /// Copies the CPU's results into the original's memory, and marks all written bytes.
  void finish(const c10::OperatorHandle& operation, stack_of_values& stack, const std::vector<c10::IValue>& arguments,
              const selection& chosen, const stack_of_values& results, bool done, bool is_true) const {
    for (const written_argument& each : written_) {
      std::size_t index = 0;
      const bool list = chosen.has_value() && arguments[each.index].isList();
      for_each_tensor(arguments[each.index], [&](const at::Tensor& tensor) {
        const bool computed = done && (!list || (*chosen)[index]);
        set_marks(tensor, {computed && is_true, !computed && each.is_result});
        ++index;
      });
    }
    const auto& returns = operation.schema().returns();
    for (std::size_t i = 0; i < returns.size(); ++i) {
      if (returns[i].alias_info() != nullptr) continue;
      c10::IValue& output = stack[stack.size() - returns.size() + i];
      const c10::IValue* const result = done ? &results[results.size() - returns.size() + i] : nullptr;
      if (output.isTensor()) {
        const bool given = result != nullptr && result->isTensor();
        put(output, given ? result->toTensor() : at::Tensor{}, is_true);
      } else if (output.isTensorList()) {
        put_list(output, result, chosen, is_true);
      }
    }
  }

  void put(c10::IValue& output, const at::Tensor& result, bool is_true) const {
    at::Tensor target = output.toTensor();
    if (!is_on_card(target) || !is_plain(target)) return;
    if (result.defined() && target.sizes() != result.sizes() && sized_by_values_) {
      target = at::empty(result.sizes(), result.options().device(target.device()));
      output = target;
    }
    const bool fits = result.defined() && target.sizes() == result.sizes();
    if (fits) host_view(target).copy_(result);
    set_marks(target, {fits && is_true, !fits});
  }

  static void put_list(const c10::IValue& output, const c10::IValue* result, const selection& chosen, bool is_true) {
    const auto outs = output.toListRef();
    std::size_t next = 0;
    for (std::size_t k = 0; k < outs.size(); ++k) {
      const at::Tensor& target = outs[k].toTensor();
      const bool computed = result != nullptr && (!chosen.has_value() || (k < chosen->size() && (*chosen)[k]));
      bool fits = false;
      if (computed) {
        const at::Tensor source = result->toListRef()[next++].toTensor();
        fits = is_on_card(target) && is_plain(target) && target.sizes() == source.sizes();
        if (fits) host_view(target).copy_(source);
      }
      set_marks(target, {fits && is_true, !fits});
    }
  }

  original_kernel original_;
  operation_kind kind_;
  equivalent equivalent_;
  std::atomic<bool> on_host_;
  bool on_lists_;
  bool random_;
  bool sized_by_values_;
  bool trusting_;
  std::vector<written_argument> written_;
  std::vector<std::size_t> ignored_;  ///< arguments that `equivalent_` does not read
  int generator_ = -1;
  int pinned_ = -1;
  std::atomic<int> failures_ = 0;
};

}  // namespace gpumem::values
