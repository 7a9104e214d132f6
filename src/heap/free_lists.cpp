#include "free_lists.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "bits.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

owner_id free_lists::add_owner() {
  const owner_id owner = next_owner();
  if (!spare_owners_.empty()) {
    spare_owners_.pop_back();
  } else {
    owner_record made;
    made.by_class.resize(classes_);
    make_room(owners_);
    spare_owners_.reserve(owners_.capacity());  // so that the rest need not allocate
    owners_with_blocks_.reserve(owners_.capacity());
    owners_.push_back(std::move(made));
  }
  owners_[owner].in_use = true;
  return owner;
}

void free_lists::remove_owner(owner_id owner) noexcept {
  assert(owner != idle_owner && empty(owner));
  owners_[owner].in_use = owners_[owner].any_beside_idle = false;
  owners_[owner].beside_idle.clear();
  spare_owners_.push_back(owner);
}

void free_lists::insert(block_index index, block_index after) noexcept {
  const block& b = blocks_[index];
  owners_[b.owner].by_class[b.segment_class].insert(blocks_, index);
  enter_order(index, after);
  if (b.owner != idle_owner) {
    if (is_beside_idle(index)) note_beside_idle(index);
    return;
  }
  for (const block_index beside : {b.prev, b.next}) {
    const bool is_owned = beside != no_block && blocks_[beside].state == block_state::free;
    if (is_owned && blocks_[beside].owner != idle_owner) note_beside_idle(beside);
  }
}

void free_lists::erase(block_index index) noexcept {
  const block& b = blocks_[index];
  owners_[b.owner].by_class[b.segment_class].erase(blocks_, index);
  leave_order(index);
}

void free_lists::enter_order(block_index index, block_index after) noexcept {
  block& b = blocks_[index];
  owner_record& record = owners_[b.owner];
  if (record.oldest == no_block && b.owner != idle_owner) {
    record.place = static_cast<std::uint32_t>(owners_with_blocks_.size());
    owners_with_blocks_.push_back(b.owner);
  }
  b.in_index.older = after;
  block_index& newer = after != no_block ? blocks_[after].in_index.newer : record.oldest;
  b.in_index.newer = newer;
  newer = index;
  (b.in_index.newer != no_block ? blocks_[b.in_index.newer].in_index.older : record.newest) = index;
}

void free_lists::leave_order(block_index index) noexcept {
  const block& b = blocks_[index];
  owner_record& record = owners_[b.owner];
  (b.in_index.older != no_block ? blocks_[b.in_index.older].in_index.newer : record.oldest) = b.in_index.newer;
  (b.in_index.newer != no_block ? blocks_[b.in_index.newer].in_index.older : record.newest) = b.in_index.older;
  if (record.oldest == no_block && b.owner != idle_owner) {
    owners_with_blocks_[record.place] = owners_with_blocks_.back();
    owners_[owners_with_blocks_[record.place]].place = record.place;
    owners_with_blocks_.pop_back();
  }
}

std::size_t free_lists::count(owner_id owner) const noexcept {
  std::size_t blocks = 0;
  for (const free_index& index : owners_[owner].by_class) blocks += index.size();
  return blocks;
}

void free_lists::note_beside_idle(block_index index) noexcept {
  const owner_id owner = blocks_[index].owner;
  owner_record& owned = owners_[owner];
  if (owned.any_beside_idle) return;
  try {
    if (owned.beside_idle.size() <= count(owner)) return owned.beside_idle.push_back(index);
  } catch (const std::bad_alloc&) {
  }
  owned.any_beside_idle = true;
  owned.beside_idle.clear();
}

bool free_lists::take_unnoted(owner_id owner) noexcept { return std::exchange(owners_[owner].any_beside_idle, false); }

block_index free_lists::take_beside_idle(owner_id owner) noexcept {
  std::vector<block_index>& noted = owners_[owner].beside_idle;
  while (!noted.empty()) {
    const block_index index = noted.back();
    noted.pop_back();
    if (holds(index, owner, false) && is_beside_idle(index)) return index;
  }
  return no_block;
}

block_index free_lists::best_fit(unsigned segment_class, owner_id owner, bool idle_too, std::uint64_t bytes,
                                 std::uint64_t alignment, bool own_first) const noexcept {
  const auto search = [&](owner_id candidate) {
    const free_index& index = owners_[candidate].by_class[segment_class];
    if (index.empty()) return no_block;
    block_index found = index.best_fit(blocks_, bytes);
    if (alignment <= 512 || found == no_block) return found;
    const block& b = blocks_[found];
    if (round_up(b.begin, alignment) + bytes <= b.begin + b.bytes) return found;
    return index.best_fit(blocks_, bytes + alignment - 512);
  };
  const block_index own = search(owner);
  if (!idle_too || owner == idle_owner) return own;
  const block_index idle = search(idle_owner);
  if (own == no_block || idle == no_block) return own != no_block ? own : idle;
  return own_first || blocks_[own].bytes <= blocks_[idle].bytes ? own : idle;
}

block_index free_lists::lowest_fit(unsigned segment_class, owner_id owner, std::uint64_t bytes, std::uint64_t alignment,
                                   bool own_first) const noexcept {
  const block_index best = best_fit(segment_class, owner, true, bytes, alignment, own_first);
  if (best == no_block || blocks_[best].bytes == bytes) return best;
  const std::uint64_t least = bytes + (alignment - 512);
  const block_index own = owners_[owner].by_class[segment_class].lowest_fit(blocks_, least);
  const block_index idle = owners_[idle_owner].by_class[segment_class].lowest_fit(blocks_, least);
  if (own == no_block && idle == no_block) return best;
  if (own_first && blocks_[best].owner == owner) return own != no_block ? own : best;
  if (own == no_block || idle == no_block) return own != no_block ? own : idle;
  return blocks_[own].begin < blocks_[idle].begin ? own : idle;
}

block_index free_lists::covering(owner_id owner, std::uint64_t begin, std::uint64_t bytes) const noexcept {
  block_index found = no_block;
  visit(owner, bytes, [&](block_index index) {
    const block& b = blocks_[index];
    if (b.begin <= begin && begin + bytes <= b.begin + b.bytes) found = index;
  });
  return found;
}

std::uint64_t free_lists::largest_bytes() const noexcept {
  std::uint64_t most = 0;
  const auto look_at = [&](owner_id owner) {
    for (const free_index& index : owners_[owner].by_class) {
      const block_index i = index.largest(blocks_);
      if (i != no_block && blocks_[i].bytes > most) most = blocks_[i].bytes;
    }
  };
  look_at(idle_owner);
  for (const owner_id owner : owners_with_blocks_) look_at(owner);
  return most;
}

std::uint64_t free_lists::metadata_bytes() const noexcept {
  std::uint64_t noted = 0;
  for (const owner_record& record : owners_) noted += record.beside_idle.capacity() * sizeof(block_index);
  return noted + owners_.capacity() * sizeof(owner_record) + owners_.size() * classes_ * sizeof(free_index) +
         (spare_owners_.capacity() + owners_with_blocks_.capacity()) * sizeof(owner_id);
}

status broken_heap(std::string_view message, std::uint64_t position) {
  return {errc::corrupt, fmt::format("heap: {} at {:#x}", message, position)};
}

status free_lists::validate(std::uint64_t free_blocks) const {
  for (owner_id owner = 0; owner < owners_.size(); ++owner) {
    if (status ok = validate_owner(owner); !ok) return ok;
    if (status ok = validate_beside_idle(owner); !ok) return ok;
    free_blocks -= count(owner);
  }
  if (free_blocks != 0) return broken_heap("free blocks that no index holds, count", free_blocks);
  return {};
}

status free_lists::validate_owner(owner_id owner) const {
  const owner_record& record = owners_[owner];
  for (const free_index& index : record.by_class) {
    if (!index.valid(blocks_)) return broken_heap("a damaged index of owner", owner);
  }
  std::size_t ordered = 0;
  std::uint64_t epoch = 0;
  for (block_index i = record.oldest; i != no_block; i = blocks_[i].in_index.newer) {
    const block& b = blocks_[i];
    if (b.state != block_state::free || b.owner != owner)
      return broken_heap("a block in another owner's list", b.begin);
    if (b.in_index.epoch < epoch) return broken_heap("an owner's list out of order", b.begin);
    epoch = b.in_index.epoch;
    ++ordered;
  }
  const std::size_t indexed = count(owner);
  if (ordered != indexed) return broken_heap("an owner whose list and index differ, owner", owner);
  if (!record.in_use && indexed != 0) return broken_heap("blocks of an owner that is gone, owner", owner);
  const bool is_listed = record.place < owners_with_blocks_.size() && owners_with_blocks_[record.place] == owner;
  if (owner != idle_owner && is_listed != (indexed != 0)) return broken_heap("a damaged list of owners, owner", owner);
  return {};
}

// Checks that every block that has an idle neighbour is noted.
status free_lists::validate_beside_idle(owner_id owner) const {
  if (owner == idle_owner || owners_[owner].any_beside_idle) return {};
  std::vector<block_index> noted = owners_[owner].beside_idle;
  std::ranges::sort(noted);
  for (block_index i = owners_[owner].oldest; i != no_block; i = blocks_[i].in_index.newer) {
    if (is_beside_idle(i) && !std::ranges::binary_search(noted, i))
      return broken_heap("a block with an idle neighbour that is not noted", blocks_[i].begin);
  }
  return {};
}

}  // namespace gpumem
