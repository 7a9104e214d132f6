/// A heap whose blocks belong to streams of a simulated device: the fixture of this layer's tests.
#pragma once

#include <gtest/gtest.h>

#include "bits.hpp"
#include "device_waits.hpp"
#include "gpumem/sim_device.hpp"
#include "stream_graphs.hpp"

namespace gpumem {

struct ordered_heap {
  sim_device device;
  heap blocks{1};
  stream_order streams;
  stream_graphs graphs{streams};
  explicit ordered_heap(stream_id_mode ids = stream_id_mode::notify) : streams{device, blocks, ids} {
    blocks.add_segment(0x1000'0000, mib, 0);
  }
  ~ordered_heap() { EXPECT_TRUE(blocks.validate().ok()) << blocks.validate().message(); }
  ordered_heap(const ordered_heap&) = delete;
  ordered_heap& operator=(const ordered_heap&) = delete;

  owner_id slot(stream_ref s) { return streams.slot_of(s, *streams.keys().key_of(s)); }
  /// Allocates a block for the owner.
  block_index take(owner_id o, std::uint64_t bytes = 512) {
    const block_index i = blocks.carve(blocks.free_blocks().best_fit(0, o, true, bytes, 512), bytes, 512);
    blocks.at(i).owner = o;
    ++streams[o].references;
    return i;
  }
  /// Allocates and frees 512 B on the stream, whose work lags by 1 ms.
  void free_on(stream_ref s) {
    const owner_id o = slot(s);
    device.enqueue(s, 1'000'000);
    const block_index i = take(o);
    --streams[o].references;
    blocks.release(i, o, streams[o].epoch, false);
    streams[o].dirty = true;
  }
  /// Records every reserved fence, as an arena does without its lock.
  void record_fences() {
    for (const unrecorded_fence& f : streams.fences().take_unrecorded()) {
      const result<fence> made = streams.record_on_device(f);
      streams.fences().recorded(f, made ? std::optional{*made} : std::nullopt);
    }
  }
  /// Makes the missing waits, as an arena does without its lock. Returns their number.
  unsigned make(device_waits& waits) {
    record_fences();
    unsigned made = 0;
    for (device_waits::wait& w : waits.begin_round()) {
      if (w.status != device_waits::wait::state::missing) continue;
      const tracked_fence behind = streams.fences()[w.fence];
      const bool done = behind.status == tracked_fence::state::pending &&
                        device.wait_stream(streams[waits.waiter()].stream, behind.device_fence).ok();
      waits.tried(w, done);
      if (done) ++made;
    }
    return made;
  }
  /// Completes all work so far, and queries its fences.
  void let_time_pass() {
    record_fences();
    device.advance_by(2'000'000);
    streams.poll();
  }
};

}  // namespace gpumem
