/// Delta debugging: the smallest list that still fails, as far as leaving out parts of it leads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gpumem::model {

/// Leaves out ever smaller parts of `items` for as long as `fails` says so of the rest (ddmin; Zeller and
/// Hildebrandt 2002, complements only). Requires `fails(items)`. The answer is 1-minimal: no single item can go.
template <typename Item, typename Fails>
std::vector<Item> shrink(std::vector<Item> items, Fails fails) {
  std::size_t part = std::max<std::size_t>(items.size() / 2, 1);
  while (true) {
    bool any = false;
    for (std::size_t at = 0; at < items.size();) {
      const std::size_t end = std::min(at + part, items.size());
      std::vector<Item> rest;
      rest.reserve(items.size() - (end - at));
      rest.insert(rest.end(), items.begin(), items.begin() + static_cast<std::ptrdiff_t>(at));
      rest.insert(rest.end(), items.begin() + static_cast<std::ptrdiff_t>(end), items.end());
      if (fails(rest)) {
        items = std::move(rest);
        any = true;
      } else {
        at = end;
      }
    }
    if (part > 1) {
      part /= 2;
    } else if (!any) {
      return items;
    }
  }
}

}  // namespace gpumem::model
