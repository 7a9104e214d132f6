#include "free_index.hpp"

namespace gpumem {

unsigned free_index::next_bin(unsigned first_bin) const noexcept {
  unsigned word = first_bin / 64;
  if (word >= words) return bins;
  std::uint64_t bits = filled_[word] & (~std::uint64_t{0} << (first_bin % 64));
  while (bits == 0) {
    if (++word == words) return bins;
    bits = filled_[word];
  }
  return word * 64 + static_cast<unsigned>(std::countr_zero(bits));
}

block_index free_index::best_fit(const block_table& blocks, std::uint64_t bytes) const noexcept {
  const unsigned own = bin_of(bytes);
  block_index found = no_block;
  for (block_index node = own < bins ? roots_[own] : no_block; node != no_block;) {
    const block& b = blocks[node];
    if (b.bytes >= bytes) {
      found = node;
      node = b.in_index.left;
    } else {
      node = b.in_index.right;
    }
  }
  if (found != no_block) return found;
  const unsigned bin = next_bin(own + 1);
  if (bin >= bins) return no_block;
  found = roots_[bin];
  while (blocks[found].in_index.left != no_block) found = blocks[found].in_index.left;
  return found;
}
void free_index::insert(block_table& blocks, block_index index) noexcept {
  block& b = blocks[index];
  const unsigned bin = bin_of(b.bytes);
  ++count_;
  filled_[bin / 64] |= std::uint64_t{1} << (bin % 64);
  block_index* link = &roots_[bin];
  const std::uint32_t rank = priority(index);
  while (*link != no_block && priority(*link) >= rank) {
    block& node = blocks[*link];
    link = before(b, node) ? &node.in_index.left : &node.in_index.right;
  }
  // Split this subtree into the blocks before b and those after it, and make b its root.
  block_index rest = *link;
  block_index* smaller = &b.in_index.left;
  block_index* larger = &b.in_index.right;
  while (rest != no_block) {
    block& node = blocks[rest];
    if (before(node, b)) {
      *smaller = rest;
      smaller = &node.in_index.right;
      rest = *smaller;
    } else {
      *larger = rest;
      larger = &node.in_index.left;
      rest = *larger;
    }
  }
  *smaller = no_block;
  *larger = no_block;
  *link = index;
}

void free_index::erase(block_table& blocks, block_index index) noexcept {
  const block& b = blocks[index];
  const unsigned bin = bin_of(b.bytes);
  --count_;
  block_index* link = &roots_[bin];
  while (*link != index) {
    block& node = blocks[*link];
    link = before(b, node) ? &node.in_index.left : &node.in_index.right;
  }
  // Merge the two subtrees in place of the block.
  block_index left = b.in_index.left;
  block_index right = b.in_index.right;
  while (left != no_block && right != no_block) {
    if (priority(left) >= priority(right)) {
      *link = left;
      link = &blocks[left].in_index.right;
      left = *link;
    } else {
      *link = right;
      link = &blocks[right].in_index.left;
      right = *link;
    }
  }
  *link = left != no_block ? left : right;
  if (roots_[bin] == no_block) filled_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
}

block_index free_index::lowest_fit(const block_table& blocks, std::uint64_t bytes) const noexcept {
  block_index found = no_block;
  visit_at_least(blocks, bytes, [&](block_index each) {
    if (found == no_block || blocks[each].begin < blocks[found].begin) found = each;
  });
  return found;
}

block_index free_index::largest(const block_table& blocks) const noexcept {
  for (unsigned word = words; word-- > 0;) {
    if (filled_[word] == 0) continue;
    const unsigned bin = word * 64 + static_cast<unsigned>(std::bit_width(filled_[word])) - 1;
    block_index node = roots_[bin];
    while (blocks[node].in_index.right != no_block) node = blocks[node].in_index.right;
    return node;
  }
  return no_block;
}

bool free_index::subtree_valid(const block_table& blocks, block_index root, const block* low, const block* high,
                               std::uint32_t* seen) {
  if (root == no_block) return true;
  const block& b = blocks[root];
  ++*seen;
  if (b.state != block_state::free) return false;
  if ((low != nullptr && !before(*low, b)) || (high != nullptr && !before(b, *high))) return false;
  for (const block_index child : {b.in_index.left, b.in_index.right}) {
    if (child != no_block && priority(child) > priority(root)) return false;
  }
  return subtree_valid(blocks, b.in_index.left, low, &b, seen) &&
         subtree_valid(blocks, b.in_index.right, &b, high, seen);
}

bool free_index::valid(const block_table& blocks) const {
  std::uint32_t seen = 0;
  for (unsigned bin = 0; bin < bins; ++bin) {
    const bool marked = ((filled_[bin / 64] >> (bin % 64)) & 1U) != 0;
    if (marked != (roots_[bin] != no_block)) return false;
    if (roots_[bin] != no_block && bin_of(blocks[roots_[bin]].bytes) != bin) return false;
    if (!subtree_valid(blocks, roots_[bin], nullptr, nullptr, &seen)) return false;
  }
  return seen == count_;
}

}  // namespace gpumem
