#include "gpumem/refusal.hpp"

#include <string>

#include "gpumem/gpumem.h"
#include "loaded_driver.hpp"

namespace gpumem {

static_assert(static_cast<int>(oom_cause::none) == GPUMEM_REFUSED_UNKNOWN);
static_assert(static_cast<int>(oom_cause::limit) == GPUMEM_REFUSED_LIMIT);
static_assert(static_cast<int>(oom_cause::device_full) == GPUMEM_REFUSED_DEVICE_FULL);
static_assert(static_cast<int>(oom_cause::fragmentation) == GPUMEM_REFUSED_FRAGMENTATION);
static_assert(static_cast<int>(oom_cause::pending_work) == GPUMEM_REFUSED_PENDING_WORK);
static_assert(static_cast<int>(oom_cause::driver_error) == GPUMEM_REFUSED_DRIVER_ERROR);

void report_refusal(const oom_report& refused, int physical_device, const char* function) {
  const statistics& figures = refused.pool_statistics;
  const bool above_limit = figures.reserved_bytes + refused.rounded_bytes > figures.limit_bytes;
  if (refused.cause == oom_cause::device_full && !above_limit) return;
  const auto callback =
      reinterpret_cast<decltype(&gpumem_refusal_callback)>(loaded_driver_symbol("gpumem_refusal_callback"));
  if (callback == nullptr) return;
  const std::string text = refused.explanation();
  const gpumem_refusal refusal{.struct_bytes = sizeof(gpumem_refusal),
                               .function = function,
                               .text = text.c_str(),
                               .requested_bytes = refused.requested_bytes,
                               .physical_device = physical_device,
                               .cause = static_cast<gpumem_refusal_cause>(refused.cause)};
  callback(&refusal);
}

}  // namespace gpumem
