// The continuation of a recording that ends in a refused request.
#pragma once

#include <cstdint>

#include "trace.hpp"

namespace gpumem::cli {

/// Requires a trace whose last operation is the refused request. Adds the operations that follow if the program goes on
/// as before: the step since its last request of about this size, again and again. A step frees the oldest blocks of
/// the sizes that it freed, and allocates the same sizes. Ends after 64 steps, or before live memory takes half of the
/// part of `capacity_bytes` that the request leaves. Adds nothing if there is no such step.
bench::trace with_next_steps(const bench::trace& asked, std::uint64_t capacity_bytes);

/// True if live memory grew throughout the recording, and with the refused request, a small one, nearly fills
/// `capacity_bytes`. If the program goes on so, a setting only delays its end; a program that runs out in its first
/// step looks the same. Requires a trace whose last operation is the request.
bool grows_for_ever(const bench::trace& asked, std::uint64_t capacity_bytes);

/// The sentence that says so.
inline constexpr const char* grows_for_ever_text =
    "Live memory grew from the first operation to the last. If the program goes on like this, a setting only delays "
    "its "
    "end: free what is no longer needed. If it ran out in its first step, `gpumem advise` shows which settings serve "
    "the recording.";

}  // namespace gpumem::cli
