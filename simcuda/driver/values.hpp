// Values of memory: writes by copies, fills and kernels, and reads by the host.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace gpumem::simcuda {

/// With lazy values, copies and fills of more bytes than this move nothing.
std::uint64_t kept_value_bytes();
/// Whether the program's small operations are computed (`simcuda_compute_values`); then memory has marks.
bool values_computed();

/// Moves the bytes and their marks. Requires valid arguments.
void copy_values(void* dst, const void* src, std::uint64_t bytes, bool to_device, bool from_device);
/// Fills the bytes; `write` writes all of them, `zero` says that their value is zero.
void fill_values(std::uint64_t address, std::uint64_t bytes, bool zero, const std::function<void()>& write);
/// Marks the word as true.
void write_value(std::uint64_t address, std::uint64_t bytes);
/// Counts bytes that the host is about to read, and whether they are true.
void read_values(std::uint64_t address, std::uint64_t bytes);
/// Drops the marks of freed memory.
void forget_values(std::uint64_t address, std::uint64_t bytes);
/// Notes a kernel of the calling thread. Outside an operation that marks its results, it makes every byte untrue.
/// `name` is for the report.
void kernel_writes(std::string_view name);
/// Returns the name by which the program looked the kernel up.
std::string kernel_name(CUfunction function);

}  // namespace gpumem::simcuda
