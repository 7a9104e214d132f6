/// The checks after each operation, and after a refusal.
#include <algorithm>
#include <set>

#include "expect.hpp"
#include "world.hpp"

namespace gpumem::model {
namespace {

/// PyTorch's rule: requests up to this size never share a segment with larger ones.
constexpr std::uint64_t largest_small_request = std::uint64_t{1} << 20;

std::uint64_t conserved(const statistics& s) {
  return s.live_bytes + s.thread_cached_bytes + s.cached_bytes + s.fenced_bytes + s.idle_bytes + s.leaked_bytes;
}

}  // namespace

void world::check_new_block(const operation& op, live_range& block) {
  expect(block.begin % std::max<std::uint64_t>(op.alignment, 512) == 0, "{:#x} is not aligned to {}", block.begin,
         op.alignment);
  const live_range* other = heap_.overlapping(block.begin, block.bytes);
  expect(other == nullptr, "{} bytes at {:#x} overlap block {}", block.bytes, block.begin, other ? other->block : 0);
  const graph_range* owned = heap_.overlapping_graph(block.begin, block.bytes, block.graph);
  expect(owned == nullptr, "{} bytes at {:#x} belong to graph {}", block.bytes, block.begin, owned ? owned->graph : 0);

  const result<block_info> info = allocator_->describe(pointer(block.begin + block.requested_bytes - 1));
  expect(info.ok(), "the new block cannot be described: {}", info.why().message());
  expect(info->begin == block.begin && info->bytes == block.bytes && info->requested_bytes == block.requested_bytes &&
             info->device == static_cast<int>(block.pool),
         "described as {} bytes for {} at {:#x} on device {}", info->bytes, info->requested_bytes, info->begin,
         info->device);
  expect(info->segment_begin <= block.begin && block.begin + block.bytes <= info->segment_begin + info->segment_bytes,
         "outside its segment of {} bytes at {:#x}", info->segment_bytes, info->segment_begin);
  block.segment_begin = info->segment_begin;
  block.segment_bytes = info->segment_bytes;
}

void world::check_refusal(const operation& op, const statistics& before, const status& why, const oom_report& report) {
  const statistics after = stats_of(op.pool);
  expect(after.live_bytes == before.live_bytes && after.live_blocks == before.live_blocks &&
             after.allocations == before.allocations,
         "a refusal changed what is live");
  if (with_.with_faults && why.code() == errc::device_error) return;
  expect(why.code() == errc::out_of_memory, "refused with {}: {}", to_string(why.code()), why.message());
  expect(!why.message().empty() && report.cause != oom_cause::none && !report.pool.empty() && !report.policy.empty(),
         "an empty report");
  expect(report.requested_bytes == op.amount && report.rounded_bytes >= naive_heap::whole_blocks(op.amount),
         "the report is about {} bytes, rounded {}", report.requested_bytes, report.rounded_bytes);
  if (with_.with_faults || capturing() || !heap_.graphs().empty()) return;

  // Nothing was pending, so the refusal must follow from the figures alone.
  const std::uint64_t slack = op.alignment > 512 ? op.alignment : 0;
  const std::uint64_t need = naive_heap::whole_blocks(op.amount) + slack;
  const std::uint64_t segment = in_granules(need);
  if (with_.policy.starts_with("expandable")) return check_page_refusal(op, need, after, report);
  const bool limit_refuses = after.reserved_bytes + segment > after.limit_bytes;
  const std::uint64_t free_bytes = device_.memory()->free_bytes;
  expect(limit_refuses || free_bytes < segment, "refused, though {} bytes more could be taken: {}", segment,
         report.headline());
  // In a region that grows, a gap between live blocks may not be mapped.
  if (with_.policy.find("backing=mapped") != std::string::npos) return;
  const bool by_class = with_.policy == "caching";
  const bool small = naive_heap::whole_blocks(op.amount) <= largest_small_request;
  const std::uint64_t gap = heap_.largest_gap([&](const live_range& r) {
    return r.pool == op.pool && (!by_class || (r.bytes <= largest_small_request) == small);
  });
  expect(gap < need, "refused, though {} bytes beside live blocks are free in one piece: {}", gap, report.headline());
  if (report.cause == oom_cause::limit) expect(limit_refuses, "not the limit's fault: {}", report.headline());
  if (report.cause == oom_cause::device_full) {
    expect(free_bytes < segment, "the device is not full: {}", report.headline());
  }
  expect(report.cause != oom_cause::driver_error && report.cause != oom_cause::pending_work,
         "nothing failed and nothing was pending: {}", report.headline());
}

// The device is so small that pages are made one by one, with the default slack as with a set one. Every page without a
// live block can then be moved or returned, so the pool can get that many pages plus what the limit and the device
// leave, except one if the cheapest place begins in a partly used page.
void world::check_page_refusal(const operation& op, std::uint64_t need, const statistics& after,
                               const oom_report& report) {
  const std::uint64_t page = device_.info().page_bytes;
  std::set<std::uint64_t> touched;
  for (const live_range& r : heap_.live()) {
    if (r.pool != op.pool) continue;
    for (std::uint64_t p = r.begin / page; p <= (r.begin + r.bytes - 1) / page; ++p) touched.insert(p);
  }
  const std::uint64_t untouched = after.reserved_bytes - touched.size() * page;
  const std::uint64_t left = after.limit_bytes > after.reserved_bytes ? after.limit_bytes - after.reserved_bytes : 0;
  const std::uint64_t more = std::min(left, device_.memory()->free_bytes) / page * page;
  const std::uint64_t pages = (need + page - 1) / page * page;
  expect(untouched + more <= pages, "refused, though {} bytes in idle pages and {} more are to be had: {}", untouched,
         more, report.headline());
  expect(report.cause != oom_cause::driver_error && report.cause != oom_cause::pending_work,
         "nothing failed and nothing was pending: {}", report.headline());
}

void world::check() {
  if (device_.hazard_count() != 0) throw disagreement{"hazard: " + device_.hazards().front().to_string()};
  std::uint64_t reserved = 0;
  std::uint64_t highest = 0;
  for (unsigned pool = 0; pool < tallies_.size(); ++pool) {
    check_pool(pool);
    reserved += tallies_[pool].reserved_bytes;
    highest += tallies_[pool].highest_limit_bytes;
  }
  expect(device_.used_bytes() == reserved, "the device has given {} bytes, the pools hold {}", device_.used_bytes(),
         reserved);
  expect(device_.peak_used_bytes() <= highest, "at the peak the device had given {} bytes, the limits allow {}",
         device_.peak_used_bytes(), highest);
}

void world::check_pool(unsigned pool) {
  tally& t = tallies_[pool];
  const statistics s = stats_of(pool);
  std::uint64_t live = 0;
  std::uint64_t requested = 0;
  std::uint64_t blocks = 0;
  for (const live_range& r : heap_.live()) {
    if (r.pool != pool) continue;
    live += r.bytes;
    requested += r.requested_bytes;
    ++blocks;
  }
  expect(s.live_bytes == live && s.requested_bytes == requested && s.live_blocks == blocks,
         "pool {} counts {} bytes for {} in {} blocks as live; the model {}, {} and {}", pool, s.live_bytes,
         s.requested_bytes, s.live_blocks, live, requested, blocks);
  expect(s.allocations - s.frees == blocks, "pool {} counts {} allocations and {} frees, with {} blocks live", pool,
         s.allocations, s.frees, blocks);
  expect(conserved(s) == s.reserved_bytes, "pool {} reserves {} bytes, but its parts are {}", pool, s.reserved_bytes,
         conserved(s));
  expect(s.limit_bytes == t.limit_bytes, "pool {} is limited to {}, expected {}", pool, s.limit_bytes, t.limit_bytes);
  expect(s.reserved_bytes <= std::max(t.limit_bytes, t.reserved_bytes), "pool {} grew to {} bytes beyond its limit {}",
         pool, s.reserved_bytes, t.limit_bytes);
  expect(s.peak_live_bytes >= s.live_bytes && s.peak_reserved_bytes >= s.reserved_bytes, "pool {} has a peak below now",
         pool);
  expect(s.misuses == t.misuses && s.out_of_memory == t.out_of_memory,
         "pool {}: {} misuses, {} refusals; expected {}, {}", pool, s.misuses, s.out_of_memory, t.misuses,
         t.out_of_memory);
  expect(with_.with_faults || s.leaked_bytes == 0, "pool {} leaked {} bytes", pool, s.leaked_bytes);
  t.reserved_bytes = s.reserved_bytes;
  const status proven = allocator_->check(static_cast<int>(pool));
  expect(proven.ok(), "pool {}: {}", pool, proven.message());
}

void world::finish() {
  for (unsigned slot = 0; slot < stream_slots; ++slot) capture_end(slot);
  for (unsigned refused = 0; !heap_.live().empty();) {  // by a planted fault, each of which occurs once
    const std::size_t left = heap_.live().size();
    const auto block = heap_.live().front().block;
    release_block(block, {});
    if (heap_.live().size() == left) ++refused;
    expect(refused < 1000, "block {} cannot be freed", block);
  }
  while (!graphs_.empty()) graph_release(graphs_.begin()->first);
  check();
  for (unsigned pool = 0; pool < tallies_.size(); ++pool) {
    (void)allocator_->trim(static_cast<int>(pool));
    const statistics s = stats_of(pool);
    if (with_.with_faults || with_.policy == "grab_all") continue;
    expect(s.reserved_bytes == 0, "pool {} keeps {} bytes at the end", pool, s.reserved_bytes);
    expect(s.free_blocks == 0 && s.segments == 0, "pool {} keeps {} blocks in {} segments at the end", pool,
           s.free_blocks, s.segments);
  }
  check();
}

}  // namespace gpumem::model
