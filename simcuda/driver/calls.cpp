// Counts the calls of each driver function, and injects planned failures.
#include <algorithm>

#include "world.hpp"

namespace gpumem::simcuda {

void forget_calls(world& w) {
  const std::lock_guard lock{w.functions_mutex};
  for (auto& [name, record] : w.functions) record.calls = 0;
  for (const auto& counts : w.own_calls) {
    for (auto& each : *counts) each = 0;
  }
}

void fail(std::string_view function, unsigned nth, CUresult error) {
  world& w = the_world();
  const std::lock_guard lock{w.mutex};
  w.failures.push_back({std::string{function}, nth, error});
  w.any_failure = true;
}

void pause_failures(bool yes) {
  world& w = the_world();
  const std::lock_guard lock{w.mutex};
  w.failures_paused = yes;
}

bool failure_planned() { return the_world().any_failure; }

void break_at(std::string_view function, unsigned nth, CUresult error) {
  world& w = the_world();
  const std::lock_guard lock{w.mutex};
  w.failures.push_back({std::string{function}, nth, error, true});
  w.any_failure = true;
}

std::uint64_t calls(std::string_view function) {
  world& w = the_world();
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
  world& w = the_world();
  const std::lock_guard lock{w.functions_mutex};
  std::uint64_t all = 0;
  for (const auto& counts : w.own_calls) {
    for (const auto& each : *counts) all += each;
  }
  for (const auto& [name, record] : w.functions) all += record.calls;
  return all;
}

void count_from_now_on() {
  world& w = the_world();
  const std::lock_guard lock{w.functions_mutex};
  front.own_calls = w.own_calls.emplace_back(std::make_unique<own_counts>()).get();
}

function_record& record_of(std::string_view function) {
  world& w = the_world();
  const std::lock_guard lock{w.functions_mutex};
  function_record& record = w.functions[std::string{function}];
  if (record.name.empty()) record.name = function;
  return record;
}

CUresult due_failure(std::string_view function) {
  world& w = the_world();
  const std::lock_guard lock{w.mutex};
  if (w.failures_paused) return CUDA_SUCCESS;
  for (auto it = w.failures.begin(); it != w.failures.end(); ++it) {
    if ((it->function != function && it->function != "*") || --it->calls_left != 0) continue;
    const CUresult error = it->error;
    if (CUcontext here = current_context(); it->sticky && here != nullptr) here->broken = error;
    w.failures.erase(it);
    w.any_failure = !w.failures.empty();
    return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace gpumem::simcuda
