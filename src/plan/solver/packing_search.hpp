/// Exhaustive search for a placement within a capacity, with pruning; for problems of some hundred buffers. Bold
/// pruning finds most placements. Exact pruning searches more nodes, and if it finds none, there is none.
///
/// The search considers only canonical placements, in which each buffer rests on the floor or on another buffer. A node
/// picks a section of time and chooses the next buffer in it. The fill heights of the sections identify a node, so the
/// search remembers failed nodes by them and never searches them again in another order. Periods of time that no open
/// buffer connects are solved separately. Deterministic except for the deadline. Not synchronised.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "problem.hpp"
#include "search_budget.hpp"
#include "sections.hpp"

namespace gpumem::plan {

class packing_search {
 public:
  enum class pruning : std::uint8_t { bold, exact };
  /// `exhausted`: no placement among those that bold pruning leaves; `impossible`: no placement at all.
  enum class outcome : std::uint8_t { found, exhausted, impossible, gave_up };
  /// The section to branch on, in this order: fewest choices; choices weighted by slack; also weighted by failures;
  /// lowest floor; a section of the first item, by resting place and rank.
  enum class rule : std::uint8_t { fewest_choices, least_slack, most_failures, lowest_floor, first_item };
  static constexpr int rule_count = 5;

  /// Requires a checked problem with `may_fit(buffers, capacity)`; keeps references to neither.
  packing_search(const problem& buffers, const sections& cut, std::uint64_t capacity, pruning how);

  /// Searches at most `most_nodes` nodes, trying buffers with a lower `rank` (by buffer) first. Later runs use the
  /// failed nodes and failure counts of earlier runs.
  outcome run(const std::vector<std::uint32_t>& rank, rule branching, std::uint64_t most_nodes, search_budget& budget);

  /// Requires a run that returned `found`.
  [[nodiscard]] placement offsets() const;
  /// How often each section recently proved a node to be dead.
  [[nodiscard]] const std::vector<double>& failures() const noexcept { return failures_; }

 private:
  using units = std::int64_t;
  using index = std::uint32_t;
  struct item {
    section_range range;
    units size;
    units alignment;
  };
  /// Open buffers and their sections.
  struct part {
    std::vector<index> items;
    section_range range;
  };

  static constexpr units none = std::numeric_limits<units>::max();
  /// `value` rounded up to a multiple of a power of two.
  static units aligned(units value, units alignment) { return (value + alignment - 1) & -alignment; }

  bool descend(const part& open);
  bool tighten(const part& open);
  bool weigh(const part& open);
  bool settle_waiting(const part& open);
  bool raise_floors(const part& open, bool& again);
  std::vector<part> split(const part& open) const;
  bool descend_parts(std::vector<part>& parts);
  bool descend_choices(const part& open, index section);
  bool place(const part& open, index candidate);
  bool raise(const part& open, index section, units slipping);
  [[nodiscard]] index choose(const part& open) const;
  [[nodiscard]] units next_level(index section) const;
  [[nodiscard]] std::uint64_t key_of(const part& open) const;
  bool out_of_budget(std::size_t open_items);

  units& floor(index section) { return values_[section]; }
  [[nodiscard]] units floor(index section) const { return values_[section]; }
  units& open_load(index section) { return values_[section_count_ + section]; }
  [[nodiscard]] units open_load(index section) const { return values_[section_count_ + section]; }
  units& rest(index candidate) { return values_[2 * section_count_ + candidate]; }
  [[nodiscard]] units rest(index candidate) const { return values_[2 * section_count_ + candidate]; }
  void set(units& value, units next_value);
  void rewind(std::size_t mark);

  pruning pruning_;
  units unit_bytes_ = 1;
  units capacity_ = 0;
  std::size_t section_count_ = 0;
  std::vector<item> items_;
  std::vector<std::vector<index>> neighbours_;  ///< by item: items that overlap it in time
  std::vector<std::vector<index>> covering_;    ///< by section
  std::vector<units> initial_load_;

  /// The state to undo on backtracking: each section's floor and bytes still to place, and each open item's current
  /// resting place.
  std::vector<units> values_;
  std::vector<std::pair<std::uint32_t, units>> trail_;
  std::vector<char> placed_;
  std::vector<units> offset_;

  /// State of the current node; valid until the search descends.
  std::vector<units> lowest_;        ///< by section: the lowest possible place of any open item
  std::vector<units> first_top_;     ///< by section: the lowest end of an open item if placed now
  std::vector<index> first_top_of_;  ///< the item of `first_top_`
  std::vector<units> second_top_;    ///< the second lowest end
  std::vector<index> choices_;       ///< by section: items that may be next
  std::vector<units> least_;         ///< by item: its lowest possible place
  std::vector<char> slips_below_;    ///< by item: another item would fit below it
  std::vector<index> waiting_;       ///< items that cannot be next
  std::vector<char> may_be_next_;    ///< by item

  std::vector<std::uint64_t> dead_;  ///< keys of failed nodes, direct-mapped; the latest one stays
  std::vector<double> failures_;
  std::vector<std::uint32_t> rank_;
  rule rule_ = rule::fewest_choices;
  std::uint64_t nodes_left_ = 0;
  search_budget* budget_ = nullptr;
  bool stopped_ = false;
};

}  // namespace gpumem::plan
