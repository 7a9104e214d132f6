// Streams, a supplier of segments and sources without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "own_memory.hpp"

namespace gpumem::torch_tests {

inline cudaStream_t stream_number(std::uintptr_t number) { return reinterpret_cast<cudaStream_t>(number); }

/// Streams whose work is done when a test says so.
class fake_streams final : public stream_calls {
 public:
  bool captures_nothing(const device_stream& stream) noexcept override { return capturing.count(stream) == 0; }
  cudaEvent_t record(const device_stream& stream) noexcept override {
    if (fails) return nullptr;
    const std::uintptr_t number = ++recorded;
    events[number] = stream;
    return reinterpret_cast<cudaEvent_t>(number);
  }
  bool is_done(cudaEvent_t event) noexcept override {
    ++queries;
    return done.count(events.at(reinterpret_cast<std::uintptr_t>(event))) != 0;
  }
  void destroy(cudaEvent_t event) noexcept override { events.erase(reinterpret_cast<std::uintptr_t>(event)); }
  bool synchronize(int /*device*/) noexcept override {
    ++synchronizations;
    return synchronizations != failing_synchronization;
  }

  std::set<device_stream> capturing;
  std::set<device_stream> done;
  std::map<std::uintptr_t, device_stream> events;  // not destroyed
  std::uintptr_t recorded = 0;
  int queries = 0;
  int synchronizations = 0;
  int failing_synchronization = 0;
  bool fails = false;
};

/// Addresses without memory, within a limit.
class fake_supplier final : public segment_supplier {
 public:
  struct books {
    std::size_t limit = SIZE_MAX;
    std::size_t reserved = 0;
    bool refuses = false;
    std::map<std::uintptr_t, std::size_t> segments{};
    std::vector<std::uintptr_t> went{};
    std::uintptr_t next = 1 << 20;
  };
  explicit fake_supplier(books& kept) : books_{kept} {}

  bool reserve(std::size_t bytes) override {
    if (books_.reserved + bytes > books_.limit) return false;
    books_.reserved += bytes;
    return true;
  }
  void release(std::size_t bytes) noexcept override { books_.reserved -= bytes; }
  void* allocate_segment(std::size_t bytes, cudaStream_t /*stream*/) override {
    if (books_.refuses) return nullptr;
    const std::uintptr_t begin = books_.next;
    books_.next += bytes;
    books_.segments[begin] = bytes;
    return reinterpret_cast<void*>(begin);
  }
  void free_segment(void* ptr) override {
    const auto begin = reinterpret_cast<std::uintptr_t>(ptr);
    books_.segments.erase(begin);
    books_.went.push_back(begin);
  }
  void came(void* /*ptr*/, std::size_t /*bytes*/, cudaStream_t /*stream*/) override {}
  void going(void* /*ptr*/, std::size_t /*bytes*/, cudaStream_t /*stream*/) override {}

 private:
  books& books_;
};

/// A source that only has an identity.
class named_source final : public memory_source {
 public:
  explicit named_source(bool empty = true) : empty_{empty} {}
  void* allocate_block(const memory_request& /*asked*/, refusal& /*why*/) override { return nullptr; }
  void* take_idle(const memory_request& /*asked*/) override { return nullptr; }
  void free_block(void* /*ptr*/) noexcept override {}
  void record_use(void* /*ptr*/, device_stream /*user*/) override {}
  [[nodiscard]] segment_range segment_around(const void* /*ptr*/) const override { return {}; }
  void describe(memory_map& /*map*/, const pool_id& /*pool*/) const override {}
  void count(memory_totals& /*totals*/, const pool_id& /*pool*/) const override {}
  bool give_back() override { return false; }
  void close() override {}
  [[nodiscard]] bool is_empty() const noexcept override { return empty_; }

 private:
  bool empty_;
};

}  // namespace gpumem::torch_tests
