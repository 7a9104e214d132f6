/// The program's side: executes each operation, and updates the model.
#include "world.hpp"

#include <algorithm>

#include "expect.hpp"

namespace gpumem::model {

world::world(const configuration& with, const opener& open) : with_{with}, device_{{.capacity_bytes = capacity_bytes}} {
  const result<settings> chosen = with.to_settings();
  expect(chosen.ok(), "settings: {}", chosen.why().message());
  auto opened = open(device_, *chosen);
  expect(opened.ok(), "open: {}", opened.why().message());
  allocator_ = std::move(*opened);
  expect(allocator_->devices().size() == with.pool_count(), "{} logical devices", allocator_->devices().size());
  for (const logical_device& d : allocator_->devices()) {
    tallies_.push_back({.limit_bytes = d.limit_bytes, .highest_limit_bytes = d.limit_bytes});
  }
  streams_[0].alive = true;
  for (unsigned slot = 1; slot <= 2; ++slot) create_stream(slot);
  allocator_->on_out_of_memory([this](int, std::uint64_t) { return out_of_memory_callback(); });
}

void world::perform(const operation& op) {
  switch (op.kind) {
    case op_kind::allocate:
      return allocate(op);
    case op_kind::release:
      return release(op);
    case op_kind::record_use:
      return record_use(op);
    case op_kind::work:
      return work(op);
    case op_kind::advance:
      return device_.advance_by(op.amount);
    case op_kind::create_stream:
      return create_stream(op.stream);
    case op_kind::destroy_stream:
      return destroy_stream(op.stream, op.variant % 2 == 0);
    case op_kind::capture_begin:
      return capture_begin(op);
    case op_kind::capture_end:
      return capture_end(op.stream);
    case op_kind::graph_launch:
      return graph_launch(op);
    case op_kind::graph_release:
      return graph_release(op.block);
    case op_kind::trim:
      return trim(op);
    case op_kind::set_limit:
      return set_limit(op);
    case op_kind::misuse:
      return misuse(op);
    case op_kind::arm_callback:
      callbacks_armed_ = op.variant;
      return;
    case op_kind::fault:
      return device_.fail_nth(static_cast<device_call>(op.variant), op.amount);
    case op_kind::foreign:
      return device_.set_foreign_bytes(op.amount);
  }
}

// --- blocks --------------------------------------------------------------------------------------------------

void world::allocate(const operation& op) {
  const stream& s = streams_.at(op.stream);
  if (!s.alive) return;
  const statistics before = stats_of(op.pool);
  const std::size_t live_before = heap_.live().size();
  oom_report report;
  const result<void*> got = allocator_->try_allocate(
      {.bytes = op.amount, .stream = s.handle, .device = static_cast<int>(op.pool), .alignment = op.alignment},
      &report);
  expect(callback_failed_.empty(), "{}", callback_failed_);
  if (!got) {
    if (got.code() == errc::out_of_memory) ++tallies_[op.pool].out_of_memory;
    if (heap_.live().size() == live_before) check_refusal(op, before, got.why(), report);
    return;
  }
  live_range block{.begin = reinterpret_cast<std::uint64_t>(*got),
                   .bytes = naive_heap::whole_blocks(op.amount),
                   .requested_bytes = op.amount,
                   .pool = op.pool,
                   .block = op.number,
                   .graph = s.capture,
                   .stream = op.stream,
                   .generation = s.generation,
                   .users = {},
                   .segment_begin = 0,
                   .segment_bytes = 0};
  check_new_block(op, block);
  heap_.add(block);
  device_.handed_out(block.begin, block.bytes, s.handle);
}

void world::release(const operation& op) {
  const live_range* block = heap_.find(op.block);
  if (block == nullptr) return;
  gpumem::free_args stated;
  const stream* own = stream_of(block->stream, block->generation);
  switch (static_cast<release_variant>(op.variant)) {
    case release_variant::own_stream:
      if (own != nullptr) stated.stream = own->handle;
      break;
    case release_variant::other_stream: {
      const stream& other = streams_.at(op.stream);
      if (other.alive && order_behind_block(other, *block)) stated.stream = other.handle;
      break;
    }
    case release_variant::all_stated:
      if (own != nullptr) stated.stream = own->handle;
      stated.bytes = block->requested_bytes;
      stated.device = static_cast<int>(block->pool);
      break;
    case release_variant::plain:
    case release_variant::count_:
      break;
  }
  release_block(op.block, stated);
}

void world::release_block(unsigned number, const gpumem::free_args& stated) {
  const live_range block = *heap_.find(number);
  device_.given_back(block.begin);  // first: the free may return the segment
  const status freed = allocator_->try_deallocate(pointer(block.begin), stated);
  if (!freed && with_.with_faults && freed.code() == errc::device_error) return;  // the block stays live
  expect(freed.ok(), "block {} cannot be freed: {}", number, freed.message());
  heap_.remove(number);
  freed_[number] = block.begin;
}

void world::record_use(const operation& op) {
  live_range* block = heap_.find(op.block);
  const stream& s = streams_.at(op.stream);
  if (block == nullptr || !s.alive) return;
  const status recorded = allocator_->record_use(pointer(block->begin + block->requested_bytes / 2), s.handle);
  if (!recorded && with_.with_faults) return;
  expect(recorded.ok(), "a use of block {} cannot be recorded: {}", op.block, recorded.message());
  block->users.push_back({op.stream, s.generation});
  device_.enqueue_use(s.handle, op.amount, block->begin, block->bytes);
}

void world::work(const operation& op) {
  const live_range* block = heap_.find(op.block);
  if (block == nullptr) return;
  const stream* by = stream_of(block->stream, block->generation);
  for (const live_range::user& u : block->users) {
    if (u.stream != op.stream) continue;
    if (const stream* user = stream_of(u.stream, u.generation)) by = user;
  }
  if (by != nullptr) device_.enqueue_use(by->handle, op.amount, block->begin, block->bytes);
}

bool world::order_behind_block(const stream& waiter, const live_range& block) {
  const stream* own = stream_of(block.stream, block.generation);
  if (own == &waiter) return true;
  if (waiter.capture != 0) return false;
  if (own != nullptr ? own->capture != 0 : capturing()) return false;
  const result<fence> f = own != nullptr ? device_.record(own->handle) : device_.record_context();
  if (!f) return false;
  const bool ordered = device_.wait_stream(waiter.handle, *f).ok();
  device_.drop(*f);
  return ordered;
}

bool world::out_of_memory_callback() {
  if (callbacks_armed_ == 0 || heap_.live().empty()) return false;
  --callbacks_armed_;
  try {
    release_block(heap_.live().front().block, {});
  } catch (const disagreement& d) {  // must not pass through the allocator
    callback_failed_ = d.what;
    return false;
  }
  return true;
}

// --- streams and graphs --------------------------------------------------------------------------------------

void world::create_stream(unsigned slot) {
  stream& s = streams_.at(slot);
  if (s.alive) return;
  s = {.handle = device_.create_stream(), .generation = ++generations_, .alive = true};
}

void world::destroy_stream(unsigned slot, bool say_so) {
  stream& s = streams_.at(slot);
  if (!s.alive || slot == 0 || s.capture != 0) return;
  if (say_so || with_.stream_ids == stream_id_mode::notify) {
    const status released = allocator_->stream_release(s.handle);
    if (!released && with_.with_faults) return;
    expect(released.ok(), "stream {} cannot be released: {}", slot, released.message());
  }
  const status destroyed = device_.destroy_stream(s.handle);
  expect(destroyed.ok(), "stream {} cannot be destroyed: {}", slot, destroyed.message());
  s.alive = false;
}

void world::capture_begin(const operation& op) {
  stream& s = streams_.at(op.stream);
  if (!s.alive || op.stream == 0 || s.capture != 0) return;
  const status begun = allocator_->capture_begin(s.handle);
  if (!begun && with_.with_faults) return;
  expect(begun.ok(), "no capture can begin on stream {}: {}", op.stream, begun.message());
  const status device_begun = device_.begin_capture(s.handle);
  expect(device_begun.ok(), "the device begins no capture: {}", device_begun.message());
  s.capture = op.number;
}

void world::capture_end(unsigned slot) {
  stream& s = streams_.at(slot);
  if (s.capture == 0) return;
  const status device_ended = device_.end_capture(s.handle);
  const result<graph_ref> ended = allocator_->capture_end(s.handle);
  if (!ended && with_.with_faults) {  // only the query for the stream's id can have failed; a second attempt succeeds
    const result<graph_ref> again = allocator_->capture_end(s.handle);
    expect(again.ok(), "the capture on stream {} cannot be ended: {}", slot, again.why().message());
    graphs_[s.capture] = {.handle = *again};
  } else {
    expect(ended.ok(), "the capture on stream {} cannot be ended: {}", slot, ended.why().message());
    graphs_[s.capture] = {.handle = *ended};
  }
  s.capture = 0;
  expect(device_ended.ok(), "{}", device_ended.message());
}

void world::graph_launch(const operation& op) {
  const auto found = graphs_.find(op.block);
  const stream& s = streams_.at(op.stream);
  if (found == graphs_.end() || !s.alive || s.capture != 0) return;
  found->second.launched = true;
  for (const graph_range& r : heap_.graphs()) {
    if (r.graph == op.block) device_.enqueue_use(s.handle, op.amount, r.begin, r.bytes);
  }
}

void world::graph_release(unsigned number) {
  const auto found = graphs_.find(number);
  if (found == graphs_.end()) return;
  const bool holds_live =
      std::any_of(heap_.live().begin(), heap_.live().end(), [&](const live_range& r) { return r.graph == number; });
  // The program would still use the block, and the launches' uses of it were not recorded with the allocator.
  if (found->second.launched && holds_live) return;
  const status released = allocator_->graph_release(found->second.handle);
  expect(released.ok(), "graph {} cannot be released: {}", number, released.message());
  heap_.release_graph(number);
  graphs_.erase(found);
}

// --- existing blocks, streams and graphs ---------------------------------------------------------------------

statistics world::stats_of(unsigned pool) const {
  result<statistics> s = allocator_->stats(static_cast<int>(pool));
  expect(s.ok(), "no statistics of pool {}: {}", pool, s.why().message());
  return *s;
}

bool world::capturing() const noexcept {
  return std::any_of(streams_.begin(), streams_.end(), [](const stream& s) { return s.capture != 0; });
}

const world::stream* world::stream_of(unsigned slot, std::uint64_t generation) const noexcept {
  const stream& s = streams_.at(slot);
  return s.alive && s.generation == generation ? &s : nullptr;
}

std::uint64_t world::in_granules(std::uint64_t bytes) const {
  const std::uint64_t granule = device_.info().granularity_bytes;
  return (bytes + granule - 1) / granule * granule;
}

}  // namespace gpumem::model
