#include "page_map.hpp"

#include <algorithm>

#include "heap.hpp"

namespace gpumem {

void page_map::make_room(std::size_t runs) {
  if (runs < room_.size()) room_.resize(runs);
  room_.reserve(runs);
  while (room_.size() < runs) {
    std::map<address, mapped_run> one;
    one.emplace();
    room_.push_back(one.extract(one.begin()));
  }
}

void page_map::insert(const mapped_run& run) {
  if (room_.empty()) {
    runs_.emplace(run.begin, run);
    return;
  }
  auto node = std::move(room_.back());
  room_.pop_back();
  node.key() = run.begin;
  node.mapped() = run;
  runs_.insert(std::move(node));
}

void page_map::erase(address begin, std::uint64_t bytes) noexcept {
  auto it = runs_.lower_bound(begin);
  while (it != runs_.end() && it->first + it->second.bytes <= begin + bytes) it = runs_.erase(it);
}

std::vector<idle_stretch> page_map::idle(const heap& in, address keep, address keep_end) const {
  std::vector<idle_stretch> out;
  for (block_index i = in.oldest_free(idle_owner); i != no_block; i = in.at(i).in_index.newer) {
    const block& b = in.at(i);
    const address end = b.begin + b.bytes;
    idle_stretch now;
    const auto close = [&] {
      if (now.bytes != 0) out.push_back(now);
      now = {};
    };
    for (auto it = runs_.lower_bound(b.begin); it != runs_.end(); ++it) {
      const mapped_run& run = it->second;
      if (run.begin + run.bytes > end) break;
      if (run.begin < keep_end && run.begin + run.bytes > keep) {
        close();
        continue;
      }
      if (now.bytes == 0) now.begin = run.begin;
      now.bytes += run.bytes;
    }
    close();
  }
  std::sort(out.begin(), out.end(), [](const idle_stretch& a, const idle_stretch& b) { return a.begin < b.begin; });
  return out;
}

bool page_map::touches(address begin, std::uint64_t bytes) const {
  auto it = runs_.lower_bound(begin + bytes);
  if (it == runs_.begin()) return false;
  --it;
  return it->second.begin + it->second.bytes > begin;
}

}  // namespace gpumem
