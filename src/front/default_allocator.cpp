#include "gpumem/default_allocator.hpp"

#include <vector>

#include "device_selection.hpp"
#include "log.hpp"
#include "published_figures.hpp"

namespace gpumem {
namespace {

result<settings> settings_of_environment() {
  settings with;
  std::vector<std::string> problems;
  if (status ok = with.apply(process_environment(), &problems); !ok) return ok;
  for (const std::string& line : problems) log_line(line);
  return with;
}

result<allocator*> open_default() {
  const result<settings> with = settings_of_environment();
  if (!with) return with.why();
  result<opened_devices> found = open_selected_devices(*with);
  if (!found) return found.why();
  // Never closed, because static destructors may free blocks.
  static const auto* const devices = new opened_devices{*std::move(found)};
  result<std::unique_ptr<allocator>> made = allocator::open(devices->chosen, *with);
  if (!made) return made.why();
  allocator* const only = made->release();
  publish_until_exit([only] { return std::vector<allocator*>{only}; }, *with);
  return only;
}

}  // namespace

result<allocator*> default_allocator() {
  static const auto* const only = new result<allocator*>{open_default()};
  return *only;
}

result<std::unique_ptr<allocator>> open_allocator(std::span<device* const> devices) {
  const result<settings> with = settings_of_environment();
  if (!with) return with.why();
  return allocator::open(devices, *with);
}

}  // namespace gpumem
