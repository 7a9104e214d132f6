/// The operations of the model test on an allocator, as plain data, so that a list of them can be cut down.
///
/// An operation names blocks, graphs and streams by number, never by address: a block is the number of the operation
/// that allocated it, a graph that of its capture, a stream is a slot. If a number names nothing (its operation was cut
/// out or refused), the operation does nothing. So every subset of a list is a valid list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpumem::model {

enum class op_kind : std::uint8_t {
  allocate,        ///< `amount` bytes at `alignment` on `stream`, in `pool`
  release,         ///< `block`, as `variant` (see release_variant)
  record_use,      ///< of `block` by `stream`, which then uses it for `amount` ns
  work,            ///< `stream` (its own, or a recorded one) uses `block` for `amount` ns
  advance,         ///< `amount` ns of virtual host time pass
  create_stream,   ///< in slot `stream`
  destroy_stream,  ///< of slot `stream`; an even `variant` calls stream_release first, even if the mode does not
                   ///< require it
  capture_begin,   ///< on `stream`
  capture_end,     ///< on `stream`
  graph_launch,    ///< of `block`, a graph, on `stream`, for `amount` ns
  graph_release,   ///< of `block`, a graph
  trim,            ///< `pool` by `amount` bytes
  set_limit,       ///< of `pool` to `amount` bytes
  misuse,          ///< as `variant` (see misuse_variant); uses `block`, `pool` and `amount` as needed
  arm_callback,    ///< the next `variant` out-of-memory callbacks free a block each
  fault,           ///< the `amount`-th call of device_call `variant` fails
  foreign,         ///< other processes hold `amount` bytes
};

enum class release_variant : std::uint8_t { plain, own_stream, other_stream, all_stated, count_ };

enum class misuse_variant : std::uint8_t {
  double_free,
  foreign_pointer,
  inner_pointer,
  wrong_size,
  wrong_device,
  request_on_no_device,
  zero_bytes,
  near_size_max,
  bad_alignment,
  huge_alignment,
  use_of_foreign_pointer,
  limit_of_no_device,
  count_
};

struct operation {
  op_kind kind = op_kind::advance;
  unsigned number = 0;  ///< its index in the generated list
  unsigned block = 0;
  unsigned stream = 0;
  unsigned pool = 0;
  std::uint64_t amount = 0;
  std::uint64_t alignment = 512;
  unsigned variant = 0;

  /// One line: `#12 allocate 4096 bytes at 512 on stream 3 in pool 0`.
  [[nodiscard]] std::string to_string() const;
};

inline constexpr unsigned stream_slots = 6;  ///< slot 0 is the default stream

struct generator_config {
  unsigned pools = 1;
  std::uint64_t capacity_bytes = 0;
  bool with_faults = false;
};

/// The same list for the same seed on every machine.
std::vector<operation> random_operations(std::uint64_t seed, unsigned count, const generator_config& with);

}  // namespace gpumem::model
