#include "stream_holds.hpp"

#include <gtest/gtest.h>

#include "ordered_heap.hpp"

namespace gpumem {
namespace {

TEST(slot_reference, ends_with_its_scope_unless_it_was_kept) {
  ordered_heap t;
  const owner_id o = t.slot(t.device.create_stream());
  {
    const slot_reference held{t.streams, o};
    EXPECT_EQ(t.streams[o].references, 1U);
  }
  EXPECT_EQ(t.streams[o].references, 0U);
  {
    slot_reference held{t.streams, o};
    held.keep();
  }
  EXPECT_EQ(t.streams[o].references, 1U);
  --t.streams[o].references;
}

TEST(held_fences, are_let_go_at_their_end) {
  ordered_heap t;
  const stream_ref s = t.device.create_stream();
  const owner_id o = t.slot(s);
  {
    held_fences held{t.streams};
    EXPECT_FALSE(held.add_cover_of(o)) << "nothing was freed";
    t.free_on(s);
    EXPECT_TRUE(held.add_cover_of(o));
    held.add(held.all().front());
    ASSERT_EQ(held.all().size(), 2U);
    t.record_fences();
    EXPECT_EQ(t.streams.fences()[held.all().front()].refcount, 3U) << "the slot holds it, too";
  }
  EXPECT_EQ(t.streams.fences()[0].refcount, 1U);
}

TEST(held_fences, leave_out_what_cannot_be_fenced_now) {
  ordered_heap t;
  t.free_on({});
  t.streams.captures().begin(capture_effect::announced);
  held_fences held{t.streams};
  EXPECT_FALSE(held.add_cover_of(t.slot({})));
  EXPECT_TRUE(held.all().empty());
}

}  // namespace
}  // namespace gpumem
