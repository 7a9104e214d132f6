// The simulated driver's functions about values (simcuda/control.h), found in the process, which loads it before
// PyTorch.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpumem::values {

struct driver_calls {
  void (*compute_values)(std::uint64_t kept_bytes);
  void (*mark_values)(std::uint64_t address, std::uint64_t bytes, int computed, int zero_due);
  int (*write_due_zeros)(std::uint64_t address, std::uint64_t bytes);
  void (*begin_operation)();
  void (*end_operation)();
  void (*answer_reads)(std::int64_t count, int is_true);
  void (*answer_no_reads)();
  void (*note_clamped)(std::uint64_t indices);
  int (*anything_captures)();
};

inline driver_calls find_driver_calls() {
  const auto find = [](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(RTLD_DEFAULT, name));
    if (function == nullptr)
      throw std::runtime_error{std::string{name} + " is not in this process: no simulated driver"};
  };
  driver_calls calls{};
  find(calls.compute_values, "simcuda_compute_values");
  find(calls.mark_values, "simcuda_mark_values");
  find(calls.write_due_zeros, "simcuda_write_due_zeros");
  find(calls.begin_operation, "simcuda_begin_operation");
  find(calls.end_operation, "simcuda_end_operation");
  find(calls.answer_reads, "simcuda_answer_reads");
  find(calls.answer_no_reads, "simcuda_answer_no_reads");
  find(calls.note_clamped, "simcuda_note_clamped");
  find(calls.anything_captures, "simcuda_anything_captures");
  return calls;
}

inline const driver_calls& driver() {
  static const driver_calls only = find_driver_calls();
  return only;
}

/// Kernels launched in this scope belong to an operation whose results are marked.
class operation_scope {
 public:
  operation_scope() { driver().begin_operation(); }
  ~operation_scope() { driver().end_operation(); }
  operation_scope& operator=(operation_scope&&) = delete;
};

/// In this scope an operation that reads back its result's size gets this count.
class answered_scope {
 public:
  answered_scope(std::int64_t count, bool is_true) { driver().answer_reads(count, is_true ? 1 : 0); }
  ~answered_scope() { driver().answer_no_reads(); }
  answered_scope& operator=(answered_scope&&) = delete;
};

}  // namespace gpumem::values
