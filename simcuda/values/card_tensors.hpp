// Tensors of simulated cards on the host: their memory is the host's, so a CPU tensor can use it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "driver_calls.hpp"

namespace gpumem::values {

inline std::int64_t bound_elements = 0;  ///< largest number of elements of computed tensors

/// Whether the tensor's bytes are accessible: it is not sparse, quantised, nested or a compiler's.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_quantized() && tensor.unsafeGetTensorImpl()->has_storage() &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}
inline bool is_on_card(const at::Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }
inline bool is_small(const at::Tensor& tensor) { return tensor.numel() <= bound_elements; }
/// The storage of a plain tensor on a card; null for any other.
inline const void* storage_of(const at::Tensor& tensor) {
  return is_on_card(tensor) && is_plain(tensor) ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()
                                                : nullptr;
}

/// Returns a CPU tensor over the same memory.
inline at::Tensor host_view(const at::Tensor& tensor) {
  at::Tensor view = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                                  at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU));
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  return view;
}

/// Calls `use(address, bytes)` for each contiguous run of the tensor. A tensor without gaps is one run.
template <typename Use>
void for_each_run(const at::Tensor& tensor, Use&& use) {
  if (tensor.numel() == 0) return;
  const auto begin = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()));
  const auto element = static_cast<std::uint64_t>(tensor.element_size());
  if (tensor.is_non_overlapping_and_dense()) {
    use(begin, static_cast<std::uint64_t>(tensor.numel()) * element);
    return;
  }
  // The dense inner dimensions form one run; the loop counts through the others.
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) != 1 && tensor.stride(i) != 0) dims.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t dense = 1;
  std::size_t outer = 0;
  while (outer < dims.size() && dims[outer].first == dense) dense *= dims[outer++].second;
  std::vector<std::int64_t> index(dims.size(), 0);
  for (;;) {
    std::int64_t offset = 0;
    for (std::size_t i = outer; i < dims.size(); ++i) offset += index[i] * dims[i].first;
    use(begin + static_cast<std::uint64_t>(offset) * element, static_cast<std::uint64_t>(dense) * element);
    std::size_t next = outer;
    while (next < dims.size() && ++index[next] == dims[next].second) index[next++] = 0;
    if (next == dims.size()) return;
  }
}

/// Returns the address of the first byte and the length to the last.
inline std::pair<std::uint64_t, std::uint64_t> extent(const at::Tensor& tensor) {
  const auto begin = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()));
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {begin, static_cast<std::uint64_t>(last + 1) * static_cast<std::uint64_t>(tensor.element_size())};
}

/// A mark of values; see driver/value_marks.hpp.
struct mark {
  bool computed = false;
  bool zero_due = false;
};

inline void set_marks(const at::Tensor& tensor, mark value) {
  if (!is_on_card(tensor) || !is_plain(tensor) || tensor.numel() == 0 || tensor.data_ptr() == nullptr) return;
  if (!is_small(tensor) && !tensor.is_non_overlapping_and_dense()) {
    // With too many runs, mark the whole extent as untrue; its bytes stay.
    const auto [at, bytes] = extent(tensor);
    driver().mark_values(at, bytes, 0, 0);
    return;
  }
  for_each_run(tensor, [&](std::uint64_t address, std::uint64_t bytes) {
    driver().mark_values(address, bytes, value.computed ? 1 : 0, value.zero_due ? 1 : 0);
  });
}

/// Call before reading the tensor's bytes. False if some of them are untrue.
inline bool make_readable(const at::Tensor& tensor) {
  bool all_true = true;
  for_each_run(tensor, [&](std::uint64_t address, std::uint64_t bytes) {
    all_true = driver().write_due_zeros(address, bytes) != 0 && all_true;
  });
  return all_true;
}

}  // namespace gpumem::values
