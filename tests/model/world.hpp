/// The program in a model run: an allocator, a simulated device, the streams and graphs, and the naive heap.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "naive_heap.hpp"
#include "operation.hpp"
#include "run.hpp"

namespace gpumem::model {

class world {
 public:
  world(const configuration& with, const opener& open);
  world(const world&) = delete;
  world& operator=(const world&) = delete;

  /// Executes the operation, as far as the things it names exist. Throws `disagreement`.
  void perform(const operation& op);
  /// Every invariant that holds between any two operations.
  void check();
  /// Ends captures, frees everything, and checks that nothing is left.
  void finish();

 private:
  struct stream {
    stream_ref handle;
    std::uint64_t generation = 0;
    bool alive = false;
    unsigned capture = 0;  ///< the graph that is being captured, or 0
  };
  struct graph {
    graph_ref handle;
    bool launched = false;
  };
  /// The model's own counters for one pool.
  struct tally {
    std::uint64_t limit_bytes = 0;
    std::uint64_t highest_limit_bytes = 0;
    std::uint64_t reserved_bytes = 0;  ///< at the last check
    std::uint64_t misuses = 0;
    std::uint64_t out_of_memory = 0;
  };

  void allocate(const operation& op);
  /// Also notes where the block's segment is.
  void check_new_block(const operation& op, live_range& block);
  void check_refusal(const operation& op, const statistics& before, const status& why, const oom_report& report);
  void release(const operation& op);
  void release_block(unsigned block, const gpumem::free_args& stated);
  void record_use(const operation& op);
  void work(const operation& op);
  void create_stream(unsigned slot);
  void destroy_stream(unsigned slot, bool say_so);
  void capture_begin(const operation& op);
  void capture_end(unsigned slot);
  void graph_launch(const operation& op);
  void graph_release(unsigned number);
  void trim(const operation& op);
  void set_limit(const operation& op);
  void misuse(const operation& op);
  bool out_of_memory_callback();

  void check_page_refusal(const operation& op, std::uint64_t need, const statistics& after, const oom_report& report);
  void check_pool(unsigned pool);
  [[nodiscard]] statistics stats_of(unsigned pool) const;
  /// Counted in all pools: the pool that counts an unknown pointer is unspecified.
  [[nodiscard]] std::uint64_t misuses() const;
  [[nodiscard]] bool capturing() const noexcept;
  [[nodiscard]] const stream* stream_of(unsigned slot, std::uint64_t generation) const noexcept;
  /// Makes work on `waiter` wait for all work of `block`'s own stream so far; false if that is impossible now.
  bool order_behind_block(const stream& waiter, const live_range& block);
  [[nodiscard]] std::uint64_t in_granules(std::uint64_t bytes) const;

  const configuration with_;
  sim_device device_;
  std::unique_ptr<allocator> allocator_;
  std::array<stream, stream_slots> streams_;
  std::uint64_t generations_ = 0;
  std::map<unsigned, graph> graphs_;         ///< that exist, by the number of their capture
  std::map<unsigned, std::uint64_t> freed_;  ///< addresses of freed blocks
  naive_heap heap_;
  std::vector<tally> tallies_;
  unsigned callbacks_armed_ = 0;
  std::string callback_failed_;
};

}  // namespace gpumem::model
