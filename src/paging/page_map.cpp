#include "page_map.hpp"

#include <algorithm>

#include "heap.hpp"

namespace gpumem {

void page_map::make_room(std::size_t runs) {
  if (runs < room_.size()) room_.resize(runs);
  room_.reserve(runs);
  while (room_.size() < runs) {
    std::map<address, mapped_run> spare;
    spare.emplace();
    room_.push_back(spare.extract(spare.begin()));
  }
}

void page_map::insert(const mapped_run& run) {
  shortest_bytes_ = std::min(shortest_bytes_, run.bytes);
  if (room_.empty()) {
    runs_.emplace(run.begin, run);
  } else {
    auto node = std::move(room_.back());
    room_.pop_back();
    node.key() = run.begin;
    node.mapped() = run;
    runs_.insert(std::move(node));
  }
}

void page_map::erase(address begin, std::uint64_t bytes) noexcept {
  auto entry = runs_.lower_bound(begin);
  while (entry != runs_.end() && entry->first + entry->second.bytes <= begin + bytes) entry = runs_.erase(entry);
}

std::vector<free_stretch> page_map::stretches(const heap& pool_heap, owner_id owner,
                                              const std::function<bool(const mapped_run&)>& skips) const {
  std::vector<free_stretch> found;
  pool_heap.free_blocks().visit(owner, shortest_bytes_, [&](block_index index) {
    const block& b = pool_heap.at(index);
    const address end = b.begin + b.bytes;
    free_stretch stretch;
    const auto close = [&] {
      if (stretch.bytes != 0) found.push_back(stretch);
      stretch = {};
    };
    for (auto entry = runs_.lower_bound(b.begin); entry != runs_.end(); ++entry) {
      const mapped_run& run = entry->second;
      if (run.begin + run.bytes > end) break;
      if (skips && skips(run)) {
        close();
        continue;
      }
      if (stretch.bytes == 0) stretch.begin = run.begin;
      stretch.bytes += run.bytes;
    }
    close();
  });
  std::ranges::sort(found, {}, &free_stretch::begin);
  return found;
}

bool page_map::touches(address begin, std::uint64_t bytes) const {
  auto entry = runs_.lower_bound(begin + bytes);
  if (entry == runs_.begin()) return false;
  --entry;
  return entry->second.begin + entry->second.bytes > begin;
}

}  // namespace gpumem
