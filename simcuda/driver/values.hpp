// What happens to values: which of them copies, fills and kernels make, and which of them the host reads.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace gpumem::simcuda {

/// Copies and fills of more bytes move nothing where the world keeps values lazily.
std::uint64_t kept_value_bytes();
/// Somebody computes the program's small operations (`simcuda_compute_values`): marks are kept.
bool values_computed();

/// These move the bytes, with their marks. The caller has checked the arguments.
void copy_values(void* dst, const void* src, std::uint64_t bytes, bool to_device, bool from_device);
/// Of a fill with `value`, of which `write` writes all.
void fill_values(std::uint64_t address, std::uint64_t bytes, bool zero, const std::function<void()>& write);
/// The word is true from now on.
void write_value(std::uint64_t address, std::uint64_t bytes);
/// The host is about to read these bytes: counts them, and whether they are true.
void read_values(std::uint64_t address, std::uint64_t bytes);
/// The memory belongs to nobody any more.
void forget_values(std::uint64_t address, std::uint64_t bytes);
/// A kernel of the calling thread: outside an operation that marks its results, nothing is true from here on. `name` is
/// for the report.
void kernel_writes(std::string_view name);
/// As the program asked for it.
std::string kernel_name(CUfunction function);

}  // namespace gpumem::simcuda
