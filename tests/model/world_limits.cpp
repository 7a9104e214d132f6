/// Operations on a pool's size: compares the results of `trim` and `set_limit` with the effect.
#include <algorithm>

#include "expect.hpp"
#include "world.hpp"

namespace gpumem::model {

void world::trim(const operation& op) {
  const statistics before = stats_of(op.pool);
  const trim_result trimmed = *allocator_->trim(static_cast<int>(op.pool), op.amount);
  const statistics after = stats_of(op.pool);
  if (with_.with_faults) return;
  expect(after.reserved_bytes + trimmed.returned_bytes == before.reserved_bytes,
         "returned {} bytes, says the result, but reserved went from {} to {}", trimmed.returned_bytes,
         before.reserved_bytes, after.reserved_bytes);
  if (with_.policy == "grab_all") expect(trimmed.returned_bytes == 0, "grab_all gave {} back", trimmed.returned_bytes);
  if (op.amount != UINT64_MAX) return;
  const std::uint64_t free_bytes = after.cached_bytes + after.fenced_bytes + after.idle_bytes;
  const std::uint64_t explained = trimmed.in_use_bytes + trimmed.pending_bytes + trimmed.kept_bytes;
  expect(explained == free_bytes, "{} bytes stay free, but {} are explained (in use {}, pending {}, kept {})",
         free_bytes, explained, trimmed.in_use_bytes, trimmed.pending_bytes, trimmed.kept_bytes);
  if (!capturing() && heap_.graphs().empty()) {
    expect(trimmed.pending_bytes == 0, "{} bytes pending, though nothing is in the way", trimmed.pending_bytes);
  }
}

void world::set_limit(const operation& op) {
  const statistics before = stats_of(op.pool);
  const result<limit_result> set = allocator_->set_limit(static_cast<int>(op.pool), op.amount);
  const statistics after = stats_of(op.pool);
  if (!set) {
    expect(set.code() == errc::bad_setting, "the limit is refused with {}", to_string(set.code()));
    expect(after.limit_bytes == before.limit_bytes, "a refused limit is in force");
    return;
  }
  expect(set->limit_bytes == op.amount && after.limit_bytes == op.amount, "limit {} set, {} in force", op.amount,
         after.limit_bytes);
  expect(set->reserved_bytes == after.reserved_bytes && set->live_bytes == after.live_bytes,
         "the result says {} reserved, {} live; the statistics {} and {}", set->reserved_bytes, set->live_bytes,
         after.reserved_bytes, after.live_bytes);
  const std::uint64_t over = after.reserved_bytes > op.amount ? after.reserved_bytes - op.amount : 0;
  expect(set->over_bytes == over, "over by {}, says the result; it is {}", set->over_bytes, over);
  tally& t = tallies_[op.pool];
  t.limit_bytes = op.amount;
  t.highest_limit_bytes = std::max(t.highest_limit_bytes, op.amount);
}

}  // namespace gpumem::model
