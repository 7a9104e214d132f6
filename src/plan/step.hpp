/// Converts a recorded sequence of allocations and frees into a plan: finds the repeating part and places each block.
///
/// A program that repeats a step asks for the same sizes on the same streams in the same order. If at least the second
/// half of the sequence is periodic, the plan has the part before it (the prologue) once, and one period that repeats.
/// Otherwise the whole sequence is the step. A block that outlives the period keeps its place throughout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpumem/settings.hpp"
#include "solve.hpp"

namespace gpumem::plan {

/// Sizes of a plan are multiples of this.
inline constexpr std::uint64_t granule_bytes = 512;

/// One operation of a recording. The caller numbers the blocks and may reuse a number after its free.
struct recorded_op {
  std::uint64_t bytes = 0;  ///< of an allocation, as requested
  std::uint32_t block = 0;
  std::uint16_t stream = 0;  ///< any number that identifies the stream
  bool free = false;
};

/// One allocation of a plan.
struct planned_allocation {
  std::uint64_t bytes = 0;  ///< multiple of 512
  std::uint64_t offset = 0;
  std::uint16_t stream = 0;  ///< numbered in order of first appearance

  friend bool operator==(const planned_allocation&, const planned_allocation&) = default;
};

struct step_plan {
  std::vector<planned_allocation> allocations;
  std::uint32_t repeat_from = 0;  ///< the allocation that follows the last one
  std::uint64_t height_bytes = 0;
  std::uint64_t peak_bytes = 0;         ///< most bytes live at once
  std::uint64_t lower_bound_bytes = 0;  ///< no placement of this plan's lifetimes is lower
};

/// The shortest period that occurs at least twice and covers the last half of the sequence; empty if there is none.
/// O(n).
[[nodiscard]] std::optional<std::size_t> period_of(const std::vector<std::uint64_t>& sequence);

/// The step of a recording as a static problem: buffer k is the k-th allocation of the plan.
struct step {
  problem buffers;
  std::vector<planned_allocation> allocations;  ///< without offsets
  std::uint32_t repeat_from = 0;
};

/// `invalid_argument` for a recording without allocations, or with a free of a block that is not live.
[[nodiscard]] result<step> step_of(const std::vector<recorded_op>& recorded);

/// Makes a plan of a recording, within the given limits. Under `poll`, memory that one stream freed may still be in use
/// when another stream requests memory, so each stream's blocks get separate offsets, unless that makes the plan more
/// than a fifth higher. Otherwise streams share offsets.
[[nodiscard]] result<step_plan> make_plan(const std::vector<recorded_op>& recorded, const solve_options& options,
                                          solution* solved = nullptr, stream_reuse reuse = stream_reuse::poll);

/// By allocation: whether any of its memory next goes to another stream, including in the next repetition of the step.
/// O(n log n).
[[nodiscard]] std::vector<bool> changes_stream(const step_plan& step);

/// A hash of sizes, streams, order and repetition, equal for plans of the same requests.
[[nodiscard]] std::uint64_t fingerprint(const std::vector<planned_allocation>& allocations, std::uint32_t repeat_from);

}  // namespace gpumem::plan
