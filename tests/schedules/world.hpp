/// One run of a scenario: the allocator, its devices, and the blocks, streams and graphs that all threads share. Keeps
/// the first broken rule.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "explored_device.hpp"
#include "history.hpp"
#include "pooled_allocator.hpp"
#include "rule.hpp"
#include "scenario.hpp"
#include "scheduler.hpp"

namespace gpumem::schedules {

class GPUMEM_HIDDEN world final : private memory_witness {
 public:
  /// `trace`: receives a line at the begin of each operation and one for its result; may be null.
  world(const scenario& program, std::string* trace);
  ~world() override;

  /// Runs the prelude. Called by a thread of the scheduler, alone.
  void prepare();
  /// One thread's program. Called by a thread of the scheduler.
  void run(std::size_t thread);
  /// Frees everything, and checks that all memory goes back. Called by a thread of the scheduler, alone.
  void settle();

  /// The first broken rule, if any.
  [[nodiscard]] const std::optional<violation>& failure() const noexcept { return failure_; }
  [[nodiscard]] std::uint64_t now_ns() noexcept { return devices_.front()->simulated().now_ns(); }
  void set_time(std::uint64_t ns);

 private:
  struct block_slot {
    void* begin = nullptr;
    std::uint64_t bytes = 0;
    std::uint32_t pool = 0;
    std::size_t request = 0;
    std::uint32_t users = 0;  // calls that name it
    bool is_taken = false;    // while its request or free runs, too
    stream_ref stream;
  };
  struct stream_slot {
    stream_ref handle;
    bool exists = false;
    bool is_ending = false;
    std::uint32_t users = 0;
    std::size_t capturing_thread = no_thread;
    bool is_told = false;
    std::uint64_t device_capture = 0;
    std::size_t unsettled = 0;  // the capture in the history
    graph_ref graph{};
    std::uint64_t device_graph = 0;
  };
  static constexpr std::size_t no_thread = SIZE_MAX;
  static constexpr std::size_t no_request = SIZE_MAX;
  /// A call of the thread, for the rules about time.
  struct call_times {
    std::uint64_t begin_ns = 0;
    std::uint64_t excused_ns = 0;
    std::uint64_t in_device_ns = 0;
    std::uint64_t unlimited_ns = 0;
  };

  void open();
  void act_each(std::size_t thread, const std::vector<operation>& steps);
  void act(std::size_t thread, const operation& step);
  void allocate(std::size_t thread, const operation& step);
  void free(std::size_t thread, const operation& step);
  void free_block(block_slot& block, bool states_stream);
  void record_use(const operation& step);
  void work(const operation& step);
  void end_stream(const operation& step);
  void begin_capture(std::size_t thread, const operation& step, bool is_told);
  void end_capture(std::size_t thread, const operation& step, bool is_told);
  void end_capture(stream_slot& stream);
  void release_graph(const operation& step);
  void destroy_graph(const operation& step);
  void release_graph(stream_slot& stream);
  void trim(const operation& step);
  void set_limit(const operation& step);
  void set_queue(const operation& step);
  bool free_in_callback();
  void settle_graphs();
  void settle_pool(std::uint32_t pool);
  void settle_limits();
  void notice_captures(std::uint32_t pool);

  [[nodiscard]] explored_device& device_of(std::uint32_t pool) noexcept;
  [[nodiscard]] explored_device& device_of_stream(std::uint32_t stream) noexcept;
  [[nodiscard]] std::uint32_t pool_for(const operation& step) const noexcept;
  [[nodiscard]] bool may_use(const stream_slot& stream, std::size_t thread) const noexcept;
  [[nodiscard]] call_times begin_call() const;
  /// Reports a call that waited although it had nothing to wait for.
  void expect_no_wait(const char* call, const call_times& begin);
  void expect_deadline(const operation& step, const call_times& begin);
  /// Reports an error status unless an injected fault explains it.
  void expect(const status& answer, const char* call, bool host_failed = false);
  void fail(rule broken, std::string why);
  void note(std::size_t thread, const operation& step, std::string_view text);

  [[nodiscard]] std::size_t request_under_way() const noexcept;
  void asks_segment(const device& card, std::uint64_t bytes) override;
  void took_segment(const device& card, address begin, std::uint64_t bytes) override;
  void returned_segments(const device& card, address begin, std::uint64_t bytes) override;

  const scenario& program_;
  std::string* trace_;
  std::vector<std::unique_ptr<explored_device>> devices_;
  std::unique_ptr<pooled_allocator> memory_;
  history rules_;
  std::array<block_slot, block_slots> blocks_{};
  std::array<stream_slot, stream_slots> streams_{};
  stream_ref home_{};
  stream_ref all_work_{};
  std::array<std::size_t, 16> request_of_thread_{};
  std::array<std::uint64_t, 16> host_fault_{};
  std::optional<violation> failure_;
};

}  // namespace gpumem::schedules
