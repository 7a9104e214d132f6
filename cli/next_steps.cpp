#include "next_steps.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "gpumem/request.hpp"

namespace gpumem::cli {
namespace {

using bench::op_kind;
using bench::trace_op;

constexpr unsigned most_steps = 64;
constexpr std::size_t most_ops = 10'000;
constexpr std::size_t windows = 8;

std::uint64_t block_bytes(const trace_op& op) { return round_up(op.bytes, block_granularity); }

/// The last allocation before `end` of this size, else of a size between three quarters and four thirds of it.
std::optional<std::size_t> last_like(const std::vector<trace_op>& ops, std::size_t end, std::uint64_t bytes) {
  std::optional<std::size_t> similar;
  for (std::size_t i = end; i-- > 0;) {
    if (ops[i].kind != op_kind::allocate) continue;
    if (ops[i].bytes == bytes) return i;
    if (!similar && ops[i].bytes / 4 * 4 >= bytes / 4 * 3 && ops[i].bytes / 4 * 3 <= bytes / 4 * 4) similar = i;
  }
  return similar;
}

/// The trace under construction, and its live blocks in order of their allocation.
class continuation {
 public:
  explicit continuation(const bench::trace& asked) : made_{asked}, taken_by_{asked.slots} {
    made_.ops.clear();
    for (const trace_op& op : asked.ops) append(op, op.slot);
  }

  /// The oldest live block like the one that `freed` frees; null if there is none.
  [[nodiscard]] std::optional<std::uint32_t> oldest_like(std::uint64_t bytes, std::uint16_t stream) const {
    const auto found = live_.find({bytes, stream});
    if (found == live_.end() || found->second.empty()) return std::nullopt;
    return found->second.begin()->second;
  }
  void append(trace_op op, std::uint32_t slot) {
    op.slot = slot;
    if (op.kind == op_kind::allocate) {
      taken_by_[slot] = {made_.ops.size(), op.bytes, op.stream};
      live_[{op.bytes, op.stream}].emplace(made_.ops.size(), slot);
      live_bytes_ += block_bytes(op);
      made_.peak_live_bytes = std::max(made_.peak_live_bytes, live_bytes_);
    } else {
      const taken& block = taken_by_[slot];
      live_[{block.bytes, block.stream}].erase({block.index, slot});
      live_bytes_ -= block_bytes(op);
    }
    made_.ops.push_back(op);
  }
  std::uint32_t new_slot() {
    taken_by_.emplace_back();
    return made_.slots++;
  }
  [[nodiscard]] std::uint64_t live_bytes() const { return live_bytes_; }
  [[nodiscard]] std::uint64_t last_ns() const { return made_.ops.back().time_ns; }
  [[nodiscard]] std::uint16_t stream_of(std::uint32_t slot) const { return taken_by_[slot].stream; }
  bench::trace done() && { return std::move(made_); }

 private:
  struct taken {
    std::size_t index = 0;
    std::uint64_t bytes = 0;
    std::uint16_t stream = 0;
  };
  bench::trace made_;
  std::vector<taken> taken_by_;  ///< by slot
  std::map<std::pair<std::uint64_t, std::uint16_t>, std::set<std::pair<std::size_t, std::uint32_t>>> live_;
  std::uint64_t live_bytes_ = 0;
};

/// Stream of the allocation that each free of the step ends, for frees of blocks from before the step.
std::vector<std::uint16_t> streams_of_freed(const std::vector<trace_op>& ops, std::size_t step_begin) {
  std::unordered_map<std::uint32_t, std::uint16_t> taken_on;
  std::vector<std::uint16_t> streams(ops.size() - step_begin);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].kind == op_kind::allocate) {
      taken_on[ops[i].slot] = ops[i].stream;
    } else if (i >= step_begin) {
      streams[i - step_begin] = taken_on[ops[i].slot];
    }
  }
  return streams;
}

}  // namespace

bench::trace with_next_steps(const bench::trace& asked, std::uint64_t capacity_bytes) {
  const std::vector<trace_op>& ops = asked.ops;
  if (ops.size() < 2) return asked;
  const std::size_t last = ops.size() - 1;
  const auto like = last_like(ops, last, ops[last].bytes);
  if (!like || last - *like > most_ops) return asked;
  continuation going{asked};
  if (going.live_bytes() >= capacity_bytes) return asked;
  const std::uint64_t most_live = going.live_bytes() + (capacity_bytes - going.live_bytes()) / 2;
  const std::size_t step_begin = *like + 1;
  const std::vector<std::uint16_t> freed_on = streams_of_freed(ops, step_begin);

  // The request before the step and the refused one are the same request of two steps.
  std::uint32_t head = ops[last].slot;
  std::size_t added = 0;
  for (unsigned step = 0; step < most_steps; ++step) {
    std::unordered_map<std::uint32_t, std::uint32_t> slot_now{{ops[*like].slot, head}};
    for (std::size_t i = step_begin; i <= last; ++i) {
      trace_op op = ops[i];
      op.time_ns = going.last_ns() + (ops[i].time_ns - ops[i - 1].time_ns);
      if (++added > most_ops) return std::move(going).done();
      if (op.kind == op_kind::allocate) {
        if (going.live_bytes() + block_bytes(op) > most_live) return std::move(going).done();
        const std::uint32_t slot = going.new_slot();
        slot_now[op.slot] = slot;
        if (i == last) head = slot;
        going.append(op, slot);
        continue;
      }
      std::optional<std::uint32_t> freed;
      if (const auto own = slot_now.find(op.slot); own != slot_now.end()) {
        freed = own->second;
        slot_now.erase(own);
      } else {
        freed = going.oldest_like(op.bytes, freed_on[i - step_begin]);
      }
      if (!freed) return std::move(going).done();
      going.append(op, *freed);
    }
  }
  return std::move(going).done();
}

bool grows_for_ever(const bench::trace& asked, std::uint64_t capacity_bytes) {
  const std::size_t before = asked.ops.size() - 1;
  if (before < windows * windows) return false;
  std::array<std::uint64_t, windows> least{};
  least.fill(UINT64_MAX);
  std::uint64_t live = 0;
  for (std::size_t i = 0; i < before; ++i) {
    const trace_op& op = asked.ops[i];
    live = op.kind == op_kind::allocate ? live + block_bytes(op) : live - block_bytes(op);
    std::uint64_t& low = least[i * windows / before];
    low = std::min(low, live);
  }
  const std::uint64_t request = block_bytes(asked.ops.back());
  const bool nearly_full = live + request > capacity_bytes / 10 * 9;
  const bool small = request < capacity_bytes / 20;
  const bool grew = std::adjacent_find(least.begin(), least.end(),
                                       [](std::uint64_t lhs, std::uint64_t rhs) { return lhs >= rhs; }) == least.end();
  return nearly_full && small && grew && least[windows - 1] - least[windows / 2] > live / 10;
}

}  // namespace gpumem::cli
