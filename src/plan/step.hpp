/// From a recorded sequence of allocations and frees to a plan: which part of it repeats, and where each block goes.
///
/// A program that repeats a step asks for the same sizes on the same streams in the same order. Where the second half
/// of the sequence, or more, is periodic, the plan holds what came before them once (`prologue`), and one period that
/// is entered again when it is through; otherwise the whole sequence is the step. What outlives the period keeps its
/// place through all of it.
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

/// One operation of a recording. Blocks are numbered by the caller; a number may be used again after its free.
struct recorded_op {
  std::uint64_t bytes = 0;  ///< as requested; of an allocation
  std::uint32_t block = 0;
  std::uint16_t stream = 0;  ///< any number that stands for it
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
  std::uint32_t repeat_from = 0;  ///< after the last allocation comes this one
  std::uint64_t height_bytes = 0;
  std::uint64_t peak_bytes = 0;         ///< most that is live at once
  std::uint64_t lower_bound_bytes = 0;  ///< no placement of this plan's lifetimes is lower
};

/// The shortest period that holds at least twice, and for the last half of the sequence; nothing where there is none.
/// O(n).
[[nodiscard]] std::optional<std::size_t> period_of(const std::vector<std::uint64_t>& sequence);

/// The step of a recording as a static problem: buffer k is the k-th allocation of the plan.
struct step {
  problem buffers;
  std::vector<planned_allocation> allocations;  ///< without offsets
  std::uint32_t repeat_from = 0;
};

/// `invalid_argument` where there is no allocation, or a free of what is not live.
[[nodiscard]] result<step> step_of(const std::vector<recorded_op>& recorded);

/// The whole way; solves within the given limits. Under `poll`, where memory that one stream freed may still be in use
/// when another one's request comes, each stream's blocks get offsets of their own, unless that makes the plan more
/// than a fifth higher. Otherwise streams share offsets.
[[nodiscard]] result<step_plan> make_plan(const std::vector<recorded_op>& recorded, const solve_options& with,
                                          solution* solved = nullptr, stream_reuse reuse = stream_reuse::poll);

/// By allocation: whether any of its memory goes to another stream next. The step that comes round again counts.
/// O(n log n).
[[nodiscard]] std::vector<bool> changes_stream(const step_plan& of);

/// A number that two plans for the same requests share: over sizes, streams, order and where it repeats.
[[nodiscard]] std::uint64_t fingerprint(const std::vector<planned_allocation>& allocations, std::uint32_t repeat_from);

}  // namespace gpumem::plan
