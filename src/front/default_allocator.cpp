#include "gpumem/default_allocator.hpp"

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "assign_or_return.hpp"
#include "device_selection.hpp"
#include "log.hpp"
#include "pooled_allocator.hpp"
#include "published_figures.hpp"

namespace gpumem {
namespace {

struct default_options {
  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> values;
};
default_options& preset() {
  static auto* const made = new default_options;
  return *made;
}

result<settings> settings_of_environment(settings options = {}) {
  std::vector<std::string> problems;
  if (status ok = options.apply(process_environment(), &problems); !ok) return ok;
  for (const std::string& line : problems) log_line(line);
  return options;
}

result<settings> settings_of_default() {
  settings options;
  const std::lock_guard lock{preset().mutex};
  for (const auto& [name, value] : preset().values) {
    if (status ok = options.set(name, value); !ok) return ok;
  }
  return settings_of_environment(std::move(options));
}

result<pooled_allocator*> open_default() {
  ASSIGN_OR_RETURN(const auto options, settings_of_default());
  ASSIGN_OR_RETURN(auto found, open_selected_devices(options));
  // Never closed, because static destructors may free blocks.
  static const auto* const devices = new opened_devices{std::move(found)};
  ASSIGN_OR_RETURN(auto made, pooled_allocator::open(devices->chosen, options));
  pooled_allocator* const only = made.release();
  publish_until_exit([only] { return std::vector<pooled_allocator*>{only}; }, options);
  return only;
}

}  // namespace

result<allocator*> default_allocator() {
  static const auto* const only = new result<pooled_allocator*>{open_default()};
  if (!*only) return only->why();
  return **only;
}

status set_default_option(std::string_view name, std::optional<std::string_view> value) {
  if (value) {
    if (status ok = settings{}.set(name, *value); !ok) return ok;
  }
  const std::lock_guard lock{preset().mutex};
  if (!value) {
    const auto found = preset().values.find(name);
    if (found != preset().values.end()) preset().values.erase(found);
    return {};
  }
  preset().values.insert_or_assign(std::string{name}, std::string{*value});
  return {};
}

result<std::unique_ptr<allocator>> open_allocator(std::span<device* const> devices) {
  ASSIGN_OR_RETURN(const auto options, settings_of_environment());
  return allocator::open(devices, options);
}

}  // namespace gpumem
