#include "claims.hpp"

#include <algorithm>

namespace gpumem {

claim_table::claim_table() {
  tables_.push_back(make_table(1024));
  current_.store(tables_.back().get(), std::memory_order_release);
}

std::unique_ptr<claim_table::table> claim_table::make_table(std::uint32_t slots) {
  auto made = std::make_unique<table>();
  made->mask = slots - 1;
  made->slots = host_array<std::atomic<std::uint64_t>>{slots};
  for (std::uint32_t s = 0; s < slots; ++s) made->slots[s].store(empty, std::memory_order_relaxed);
  return made;
}

void claim_table::place(table& t, std::uint64_t entry) noexcept {
  std::uint32_t s = static_cast<std::uint32_t>(entry >> 32) & t.mask;
  while (t.slots[s].load(std::memory_order_relaxed) != empty) s = (s + 1) & t.mask;
  t.slots[s].store(entry, std::memory_order_release);
}

void claim_table::grow() {
  const table& old = *tables_.back();
  std::unique_ptr<table> larger = make_table((old.mask + 1) * 2);
  for (std::uint32_t s = 0; s <= old.mask; ++s) {
    const std::uint64_t entry = old.slots[s].load(std::memory_order_relaxed);
    if (entry != empty) place(*larger, entry);
  }
  tables_.push_back(std::move(larger));
  current_.store(tables_.back().get(), std::memory_order_release);
}

// Storage doubles, so that most of many claims lie on huge pages; a chunk is a part of it.
claim* claim_table::more_claims() {
  if (left_ == 0) {
    const std::size_t chunks = std::max<std::size_t>(made_, 1);
    storage_.emplace_back(chunks * chunk_claims);
    left_ = chunks;
  }
  ++made_;
  host_array<claim>& latest = storage_.back();
  return latest.data() + (latest.size() - left_-- * chunk_claims);
}

void claim_table::insert(address at, block_index i, claim_word w) {
  if (claim*& chunk = chunks_[i >> chunk_shift]; chunk == nullptr) chunk = more_claims();
  if ((count_ + 1) * 2 > tables_.back()->mask) grow();
  claim& c = (*this)[i];
  c.begin.store(at, std::memory_order_relaxed);
  c.write(w);
  place(*tables_.back(), std::uint64_t{hash_of(at)} << 32 | i);
  ++count_;
}

void claim_table::erase(block_index i) noexcept {
  table& t = *tables_.back();
  claim& c = (*this)[i];
  c.write(claim_word{});
  const std::uint64_t entry = std::uint64_t{hash_of(c.begin.load(std::memory_order_relaxed))} << 32 | i;
  std::uint32_t hole = static_cast<std::uint32_t>(entry >> 32) & t.mask;
  while (t.slots[hole].load(std::memory_order_relaxed) != entry) hole = (hole + 1) & t.mask;
  for (std::uint32_t at = (hole + 1) & t.mask;; at = (at + 1) & t.mask) {
    const std::uint64_t next = t.slots[at].load(std::memory_order_relaxed);
    if (next == empty) break;
    // An entry may fill the hole when the hole lies between its home and its place.
    const std::uint32_t from_home = (at - static_cast<std::uint32_t>(next >> 32)) & t.mask;
    const std::uint32_t from_hole = (at - hole) & t.mask;
    if (from_home >= from_hole) {
      t.slots[hole].store(next, std::memory_order_release);
      hole = at;
    }
  }
  t.slots[hole].store(empty, std::memory_order_release);
  --count_;
}

std::uint64_t claim_table::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& part : storage_) sum += part.size() * sizeof(claim);
  for (const auto& t : tables_) sum += t->slots.size() * sizeof(std::uint64_t);
  return sum;
}

}  // namespace gpumem
