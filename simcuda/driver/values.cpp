#include "values.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "control.h"
#include "driver_state.hpp"
#include "run_recorder.hpp"
#include "value_marks.hpp"

namespace gpumem::simcuda {
namespace {

constexpr std::uint64_t kept_without_values = std::uint64_t{64} << 10;
std::atomic<std::uint64_t> kept_bytes = 0;  // 0: values are not computed

struct answered_reads {
  bool active = false;
  bool is_true = false;
  std::int64_t count = 0;
};
thread_local int open_operations = 0;
thread_local answered_reads answered;

bool moves(std::uint64_t bytes) { return !the_driver_state().config.lazy_values || bytes <= kept_value_bytes(); }
/// Whether the size is that of a count or a boolean that an operation reads back while it runs.
bool is_answered(std::uint64_t bytes) {
  return answered.active && (bytes == 1 || bytes == sizeof(std::int32_t) || bytes == sizeof(std::int64_t));
}

void copy_within_cards(void* dst, const void* src, std::uint64_t bytes) {
  value_marks& marks = the_value_marks();
  if (moves(bytes)) {
    std::memmove(dst, src, bytes);
    marks.copy(number_of(dst), number_of(src), bytes);
    return;
  }
  const bool zeros = marks.all_computed(number_of(src), bytes) && marks.all_zero_due(number_of(src), bytes);
  marks.set(number_of(dst), bytes, {.computed = zeros, .zero_due = true});
}

void copy_to_host(void* dst, const void* src, std::uint64_t bytes) {
  if (is_answered(bytes)) {
    std::memcpy(dst, &answered.count, bytes);
    return;
  }
  value_marks& marks = the_value_marks();
  if (moves(bytes) || (values_computed() && marks.all_computed(number_of(src), bytes))) {
    marks.write_zeros(number_of(src), bytes);
    std::memmove(dst, src, bytes);
  } else {
    std::memset(dst, 0, bytes);
  }
}

}  // namespace

std::uint64_t kept_value_bytes() { return std::max(kept_without_values, kept_bytes.load(std::memory_order_relaxed)); }
bool values_computed() { return kept_bytes.load(std::memory_order_relaxed) != 0; }

void copy_values(void* dst, const void* src, std::uint64_t bytes, bool to_device, bool from_device) {
  if (!to_device) return copy_to_host(dst, src, bytes);
  if (from_device && values_computed()) return copy_within_cards(dst, src, bytes);
  const bool moved = moves(bytes);
  if (moved) std::memmove(dst, src, bytes);
  if (values_computed()) the_value_marks().set(number_of(dst), bytes, {.computed = moved, .zero_due = !moved});
}

void fill_values(std::uint64_t address, std::uint64_t bytes, bool zero, const std::function<void()>& write) {
  const bool written = moves(bytes);
  if (written) write();
  if (values_computed()) the_value_marks().set(address, bytes, {.computed = written || zero, .zero_due = !written});
}

void write_value(std::uint64_t address, std::uint64_t bytes) {
  if (values_computed()) the_value_marks().set(address, bytes, {.computed = true, .zero_due = false});
}

void read_values(std::uint64_t address, std::uint64_t bytes) {
  const bool is_true = is_answered(bytes) ? answered.is_true : the_value_marks().all_computed(address, bytes);
  note_host_read(bytes, values_computed() && is_true);
}

void forget_values(std::uint64_t address, std::uint64_t bytes) {
  if (values_computed()) the_value_marks().erase(address, bytes);
}

void kernel_writes(std::string_view name) {
  if (!values_computed() || open_operations != 0) return;
  the_value_marks().doubt_all();
  note_unknown_kernel(name);
}

}  // namespace gpumem::simcuda

using namespace gpumem::simcuda;  // NOLINT: these functions are global

extern "C" {

void simcuda_compute_values(std::uint64_t bytes) { kept_bytes = bytes; }
void simcuda_mark_values(std::uint64_t address, std::uint64_t bytes, int computed, int zero_due) {
  the_value_marks().set(address, bytes, {.computed = computed != 0, .zero_due = zero_due != 0});
}
int simcuda_values_are_true(std::uint64_t address, std::uint64_t bytes) {
  return the_value_marks().all_computed(address, bytes) ? 1 : 0;
}
int simcuda_write_due_zeros(std::uint64_t address, std::uint64_t bytes) {
  return the_value_marks().write_zeros(address, bytes) ? 1 : 0;
}
void simcuda_begin_operation() { ++open_operations; }
void simcuda_end_operation() { --open_operations; }
void simcuda_answer_reads(std::int64_t count, int is_true) {
  answered = {.active = true, .is_true = is_true != 0, .count = count};
}
void simcuda_answer_no_reads() { answered = {}; }
int simcuda_anything_captures() {
  const std::lock_guard lock{the_driver_state().mutex};
  return std::ranges::any_of(the_driver_state().streams, [](const auto& each) { return each->graph != nullptr; }) ? 1
                                                                                                                  : 0;
}
void simcuda_note_clamped(std::uint64_t indices) {
  const std::lock_guard lock{the_driver_state().mutex};
  note_clamped(indices);
}

}  // extern "C"
