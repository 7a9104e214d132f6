/// Exhaustive search for a placement below a given capacity, with pruning; for problems of some hundred buffers.
/// Bold pruning finds most; exact pruning searches more nodes, and where it finds nothing there is nothing.
///
/// Only canonical placements are looked at: each buffer rests on the floor or on another one, as if it had fallen. A
/// node of the search picks a section of time and asks which buffer comes next in it; all that is known about a node is
/// how high each section is filled, so nodes that failed are remembered by that and never searched again, by whichever
/// order they are reached. Parts of time that no open buffer connects are solved one by one. The same calls in the same
/// order do the same work: only the deadline depends on a clock. Not synchronised.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.hpp"
#include "search_budget.hpp"
#include "sections.hpp"

namespace gpumem::plan {

class packing_search {
 public:
  enum class pruning : std::uint8_t { bold, exact };
  /// `exhausted`: nothing in all that bold pruning leaves; `impossible`: nothing at all.
  enum class outcome : std::uint8_t { found, exhausted, impossible, gave_up };
  /// Which section is branched on: the one with the fewest choices; these weighed by its slack; and by its failures,
  /// too; the one with the lowest floor; one that the first item lies in, by resting place and rank.
  enum class rule : std::uint8_t { fewest_choices, least_slack, most_failures, lowest_floor, first_item };
  static constexpr int rule_count = 5;

  /// Requires a checked problem with `may_fit(buffers, capacity)`; keeps references to neither.
  packing_search(const problem& buffers, const sections& cut, std::uint64_t capacity, pruning how);

  /// Tries for `most_nodes` nodes; buffers with a lower `rank` (by buffer) come first where there is a choice. What one
  /// run learns serves the next.
  outcome run(const std::vector<std::uint32_t>& rank, rule by, std::uint64_t most_nodes, search_budget& budget);

  /// After `found`.
  [[nodiscard]] placement offsets() const;
  /// How often each section was what proved a node to be dead, of late.
  [[nodiscard]] const std::vector<double>& failures() const noexcept { return failures_; }

 private:
  using units = std::int64_t;
  using index = std::uint32_t;
  struct item {
    section_range range;
    units size;
    units alignment;
  };
  /// Open buffers, and the sections that they lie in.
  struct part {
    std::vector<index> items;
    section_range range;
  };

  bool descend(const part& open);
  bool tighten(const part& open);
  bool weigh(const part& open);
  bool settle_waiting(const part& open);
  bool raise_floors(const part& open, bool& again);
  std::vector<part> split(const part& open) const;
  bool descend_parts(std::vector<part>& parts);
  bool descend_choices(const part& open, index section);
  bool place(const part& open, index i);
  bool raise(const part& open, index section, units slipping);
  [[nodiscard]] index choose(const part& open) const;
  [[nodiscard]] units next_level(index section) const;
  [[nodiscard]] std::uint64_t key_of(const part& open) const;
  bool out_of_budget(std::size_t open_items);

  units& floor(index section) { return values_[section]; }
  [[nodiscard]] units floor(index section) const { return values_[section]; }
  units& open_load(index section) { return values_[section_count_ + section]; }
  [[nodiscard]] units open_load(index section) const { return values_[section_count_ + section]; }
  units& rest(index i) { return values_[2 * section_count_ + i]; }
  [[nodiscard]] units rest(index i) const { return values_[2 * section_count_ + i]; }
  void set(units& value, units to);
  void rewind(std::size_t mark);

  pruning pruning_;
  units unit_bytes_ = 1;
  units capacity_ = 0;
  std::size_t section_count_ = 0;
  std::vector<item> items_;
  std::vector<std::vector<index>> neighbours_;  ///< by item: those that are alive at some time with it
  std::vector<std::vector<index>> covering_;    ///< by section
  std::vector<units> initial_load_;

  /// What is undone on the way back: for each section its floor and the bytes still to be placed in it, for each open
  /// item where it would come to rest now.
  std::vector<units> values_;
  std::vector<std::pair<std::uint32_t, units>> trail_;
  std::vector<char> placed_;
  std::vector<units> offset_;

  /// Of the node in hand: valid until the search descends.
  std::vector<units> lowest_;        ///< by section: the lowest that any open item in it can lie
  std::vector<units> first_top_;     ///< by section: the lowest end of an open item, were it placed now
  std::vector<index> first_top_of_;  ///< whose that is
  std::vector<units> second_top_;    ///< the next
  std::vector<index> choices_;       ///< by section: items that may be next
  std::vector<units> least_;         ///< by item: where it lies at least
  std::vector<char> slips_below_;    ///< by item: another one would fit below it
  std::vector<index> waiting_;       ///< those that cannot be next
  std::vector<char> may_be_next_;    ///< by item

  std::vector<std::uint64_t> dead_;  ///< keys of failed nodes; each has one place in it, and the latest stays
  std::vector<double> failures_;
  std::vector<std::uint32_t> rank_;
  rule rule_ = rule::fewest_choices;
  std::uint64_t nodes_left_ = 0;
  search_budget* budget_ = nullptr;
  bool stopped_ = false;
};

}  // namespace gpumem::plan
