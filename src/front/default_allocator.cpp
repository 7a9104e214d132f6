#include "gpumem/default_allocator.hpp"

#include <vector>

#include "device_selection.hpp"
#include "log.hpp"
#include "pooled_allocator.hpp"
#include "published_figures.hpp"

namespace gpumem {
namespace {

result<settings> settings_of_environment() {
  settings options;
  std::vector<std::string> problems;
  if (status ok = options.apply(process_environment(), &problems); !ok) return ok;
  for (const std::string& line : problems) log_line(line);
  return options;
}

result<pooled_allocator*> open_default() {
  const result<settings> options = settings_of_environment();
  if (!options) return options.why();
  result<opened_devices> found = open_selected_devices(*options);
  if (!found) return found.why();
  // Never closed, because static destructors may free blocks.
  static const auto* const devices = new opened_devices{*std::move(found)};
  result<std::unique_ptr<pooled_allocator>> made = pooled_allocator::open(devices->chosen, *options);
  if (!made) return made.why();
  pooled_allocator* const only = made->release();
  publish_until_exit([only] { return std::vector<pooled_allocator*>{only}; }, *options);
  return only;
}

}  // namespace

result<allocator*> default_allocator() {
  static const auto* const only = new result<pooled_allocator*>{open_default()};
  if (!*only) return only->why();
  return **only;
}

result<std::unique_ptr<allocator>> open_allocator(std::span<device* const> devices) {
  const result<settings> options = settings_of_environment();
  if (!options) return options.why();
  return allocator::open(devices, *options);
}

}  // namespace gpumem
