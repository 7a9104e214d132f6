#include "gpumem/default_allocator.hpp"

#include <vector>

#include "device_selection.hpp"
#include "gpumem/gpu_usage.hpp"
#include "log.hpp"
#include "published_figures.hpp"
#include "visible_devices.hpp"

namespace gpumem {
namespace {

result<allocator*> open_default() {
  settings with;
  std::vector<std::string> problems;
  if (status ok = with.apply(process_environment(), &problems); !ok) return ok;
  for (const std::string& line : problems) log_line(line);
  result<std::vector<std::unique_ptr<device>>> found = open_visible_devices();
  if (!found) return found.why();
  // Never closed: blocks may be freed, and streams used, until the process ends.
  static auto* const devices = new std::vector<device*>;
  for (std::unique_ptr<device>& one : *found) devices->push_back(one.release());
  result<std::vector<device*>> chosen = selected_devices(*devices, with, gpu_usage_now);
  if (!chosen) return chosen.why();
  result<std::unique_ptr<allocator>> made = allocator::open(*chosen, with);
  if (!made) return made.why();
  publish_until_exit(**made, *chosen, with);
  return made->release();
}

}  // namespace

result<allocator*> default_allocator() {
  static const auto* const only = new result<allocator*>{open_default()};
  return *only;
}

}  // namespace gpumem
