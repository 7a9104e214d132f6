/// A program of a few threads with a few operations each, and the allocator that it uses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chooser.hpp"
#include "gpumem/device.hpp"

namespace gpumem::schedules {

inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;
inline constexpr std::uint64_t microsecond = 1'000;
inline constexpr std::uint64_t millisecond = 1'000'000;

/// Operations name blocks, streams and graphs by the numbers of their slots, which all threads share.
inline constexpr std::uint32_t block_slots = 8;
inline constexpr std::uint32_t stream_slots = 4;

struct allocator_setup {
  std::string policy = "growth";
  std::string stream_ids = "notify";  ///< or `query`
  std::string reuse = "poll";
  std::uint64_t card_bytes = 64 * mib;
  std::uint64_t limit_bytes = 64 * mib;  ///< of each pool
  std::uint32_t pools = 1;               ///< on one device
  std::uint32_t devices = 1;
  std::uint64_t free_wait_ms = 10;
  bool thread_cache = true;
  bool preloaded = false;     ///< frees behind all work of the device, and limited waits
  bool callback = false;      ///< an out-of-memory callback that frees a block
  bool prelude_apart = true;  ///< another thread than the first runs the prelude
  bool threads_end = false;   ///< thread-local objects are destroyed in the schedule
  bool notices_captures = false;
};

struct operation {
  enum class kind : std::uint8_t {
    allocate,                 ///< into a free slot: block, stream, pool, amount = bytes
    free,                     ///< block; pool != 0: states its stream
    record_use,               ///< block, stream
    work,                     ///< block's bytes used on stream; amount = ns
    pass_time,                ///< amount = ns
    create_stream,            ///< stream
    end_stream,               ///< stream: released, then destroyed
    begin_capture,            ///< stream: told
    end_capture,              ///< stream
    release_graph,            ///< stream: of its latest capture
    begin_unnoticed_capture,  ///< stream: the device alone knows
    end_unnoticed_capture,
    destroy_graph,
    trim,          ///< pool; amount = bytes
    set_limit,     ///< pool; amount = bytes
    statistics,    ///< pool
    check,         ///< pool
    fill_queue,    ///< stream: records wait until it is drained, or for amount = ns
    drain_queue,   ///< stream
    device_fault,  ///< call = block; the amount-th fails
    host_fault,    ///< the amount-th host allocation of this thread's next operation fails
    count_
  };
  kind action = kind::allocate;
  std::uint32_t id = 0;
  std::uint32_t block = 0;
  std::uint32_t stream = 0;
  std::uint32_t pool = 0;
  std::uint64_t amount = 0;

  [[nodiscard]] std::string to_string() const;
};

struct scenario {
  allocator_setup setup;
  std::vector<operation> prelude;  ///< run alone, before the threads
  std::vector<std::vector<operation>> threads;

  /// Numbers the operations.
  void number();
  [[nodiscard]] std::size_t operations() const noexcept;
  [[nodiscard]] std::string to_string() const;
};

/// The subject of generated scenarios.
enum class topic : std::uint8_t { requests, preloaded, streams, captures, faults, pools };
std::string_view to_string(topic subject) noexcept;

scenario generate(topic subject, std::uint64_t seed);

}  // namespace gpumem::schedules
