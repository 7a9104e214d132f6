// Counts the calls of each driver function and injects planned failures.
#include <algorithm>

#include "driver_state.hpp"

namespace gpumem::simcuda {

void forget_calls(driver_state& state) {
  const std::lock_guard lock{state.functions_mutex};
  for (auto& [name, record] : state.functions) record.calls = 0;
  for (const auto& counts : state.own_calls) {
    for (auto& each : *counts) each = 0;
  }
}

void fail(std::string_view function, unsigned nth, CUresult error) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  w.failures.push_back({std::string{function}, nth, error});
  w.any_failure = true;
}

void pause_failures(bool paused) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  w.failures_paused = paused;
}

bool failure_planned() { return the_driver_state().any_failure; }

void break_at(std::string_view function, unsigned nth, CUresult error) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  w.failures.push_back({std::string{function}, nth, error, true});
  w.any_failure = true;
}

std::uint64_t calls(std::string_view function) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.functions_mutex};
  const auto own = std::find(own_call_names.begin(), own_call_names.end(), function);
  if (own != own_call_names.end()) {
    std::uint64_t all = 0;
    for (const auto& counts : w.own_calls) all += (*counts)[static_cast<std::size_t>(own - own_call_names.begin())];
    return all;
  }
  const auto found = w.functions.find(function);
  return found == w.functions.end() ? 0 : found->second.calls.load();
}

std::uint64_t all_calls() {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.functions_mutex};
  std::uint64_t all = 0;
  for (const auto& counts : w.own_calls) {
    for (const auto& each : *counts) all += each;
  }
  for (const auto& [name, record] : w.functions) all += record.calls;
  return all;
}

void count_from_now_on() {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.functions_mutex};
  front.own_calls = w.own_calls.emplace_back(std::make_unique<own_counts>()).get();
}

function_record& record_of(std::string_view function) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.functions_mutex};
  function_record& record = w.functions[std::string{function}];
  if (record.name.empty()) record.name = function;
  return record;
}

CUresult due_failure(std::string_view function) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  if (w.failures_paused) return CUDA_SUCCESS;
  for (auto failure = w.failures.begin(); failure != w.failures.end(); ++failure) {
    if ((failure->function != function && failure->function != "*") || --failure->calls_left != 0) continue;
    const CUresult error = failure->error;
    if (CUcontext context = current_context(); failure->sticky && context != nullptr) context->broken = error;
    w.failures.erase(failure);
    w.any_failure = !w.failures.empty();
    return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace gpumem::simcuda
