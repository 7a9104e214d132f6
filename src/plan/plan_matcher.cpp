/// If the same few requests occur several times in a plan, the next occurrence after the current position counts.
#include "plan_matcher.hpp"

#include <algorithm>

#include "mixed_bits.hpp"

namespace gpumem::plan {

plan_matcher::plan_matcher(std::shared_ptr<const step_plan> followed)
    : plan_{std::move(followed)}, changes_stream_{plan::changes_stream(*plan_)} {
  const std::vector<planned_allocation>& all = plan_->allocations;
  for (const planned_allocation& each : all) offsets_.push_back(each.offset);
  std::sort(offsets_.begin(), offsets_.end());
  offsets_.erase(std::unique(offsets_.begin(), offsets_.end()), offsets_.end());
  for (const planned_allocation& each : all) {
    place_of_.push_back(
        static_cast<std::uint32_t>(std::lower_bound(offsets_.begin(), offsets_.end(), each.offset) - offsets_.begin()));
  }
  block_at_.assign(offsets_.size(), nobody);
  taken_ = rank_set{static_cast<std::uint32_t>(offsets_.size())};
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    take(request(all[i].bytes, all[i].stream));
    if (i + 1 >= remembered) known_.emplace_back(latest(), i);
  }
  std::sort(known_.begin(), known_.end());
  std::fill(std::begin(history_), std::end(history_), 0);
}

std::uint64_t plan_matcher::request(std::uint64_t bytes, std::uint64_t stream_number) const noexcept {
  return mixed_bits(bytes + stream_number * 0x9e3779b97f4a7c15U);
}

std::uint64_t plan_matcher::number_of(std::uint64_t stream) {
  if (last_number_ == nobody || stream != last_stream_) {
    last_number_ = stream_.emplace(stream, stream_.size()).first->second;
    last_stream_ = stream;
  }
  return last_number_;
}

std::uint64_t plan_matcher::latest() const noexcept {
  std::uint64_t sum = 0;
  for (const std::uint64_t each : history_) sum = mixed_bits(sum + each);
  return sum;
}

void plan_matcher::take(std::uint64_t key) noexcept {
  std::copy(std::begin(history_) + 1, std::end(history_), std::begin(history_));
  history_[remembered - 1] = key;
}

std::optional<std::uint32_t> plan_matcher::find_again() const noexcept {
  const std::uint64_t key = latest();
  auto match = std::lower_bound(known_.begin(), known_.end(), std::pair{key, cursor_});
  if (match == known_.end() || match->first != key)
    match = std::lower_bound(known_.begin(), known_.end(), std::pair{key, 0U});
  if (match == known_.end() || match->first != key) return std::nullopt;
  return match->second;
}

std::uint32_t plan_matcher::go_behind(std::uint32_t position) noexcept {
  latest_given_ = position;
  cursor_ = position + 1 == plan_->allocations.size() ? plan_->repeat_from : position + 1;
  in_a_row_ = 0;
  return place_of_[position];
}

std::optional<std::uint32_t> plan_matcher::next(std::uint64_t bytes, std::uint64_t stream) {
  const std::uint64_t number = number_of(stream);
  take(request(bytes, number));
  const planned_allocation& expected = plan_->allocations[cursor_];
  if (expected.bytes == bytes && expected.stream == number) return go_behind(cursor_);
  if (const auto again = find_again()) return go_behind(*again);
  if (in_a_row_ < lost_after) ++in_a_row_;
  return std::nullopt;
}

void plan_matcher::placed(std::uint32_t place, std::uint32_t block) {
  if (block >= place_at_.size()) place_at_.resize(std::max<std::size_t>(block + 1, 2 * place_at_.size()));
  place_at_[block] = {place, changes_stream_[latest_given_]};
  block_at_[place] = block;
  taken_.add(place);
}

bool plan_matcher::ended(std::uint32_t block) noexcept {
  if (block >= place_at_.size() || place_at_[block].place == nobody) return false;
  const placed_block was = std::exchange(place_at_[block], {});
  block_at_[was.place] = nobody;
  taken_.remove(was.place);
  return was.changes_stream;
}

std::optional<std::uint32_t> plan_matcher::placed_at_or_below(std::uint32_t place) const noexcept {
  const auto rank = taken_.at_or_below(place);
  if (!rank) return std::nullopt;
  return block_at_[*rank];
}

std::uint64_t plan_matcher::metadata_bytes() const noexcept {
  return plan_->allocations.size() * (sizeof(planned_allocation) + sizeof(std::uint32_t)) +
         offsets_.size() * (sizeof(std::uint64_t) + sizeof(std::uint32_t)) + known_.capacity() * sizeof(known_[0]) +
         place_at_.capacity() * sizeof(placed_block) + changes_stream_.capacity() / 8;
}

}  // namespace gpumem::plan
