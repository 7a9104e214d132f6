#include "segment_observers.hpp"

#include <fmt/format.h>

#include <exception>
#include <string_view>

#include "log.hpp"

namespace gpumem {
namespace {

void log_thrown(const segment_extent& extent, std::string_view text) noexcept {
  log_if_possible([&] {
    return fmt::format("an observer of device {}'s segments threw at {:#x}: {}", extent.device, extent.begin, text);
  });
}

}  // namespace

void segment_observers::tell_each(void (segment_observer::*call)(const segment_extent&),
                                  const segment_extent& extent) const noexcept {
  for (const entry* each = latest_.load(std::memory_order_acquire); each != nullptr; each = each->earlier) {
    try {
      (*each->observer.*call)(extent);
    } catch (const std::exception& thrown) {
      log_thrown(extent, thrown.what());
    } catch (...) {
      log_thrown(extent, "an object that is no std::exception");
    }
  }
}

}  // namespace gpumem
