// PyTorch's snapshots: any bytes are a valid trace or `corrupt` with a reason.
#include "checked_trace.hpp"
#include "snapshot.hpp"

using namespace gpumem;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const std::string_view input = fuzz::text_of(data, bytes);
  for (const int device : {-1, 0, 1}) fuzz::check(bench::trace_of_snapshot(input, device));
  return 0;
}
