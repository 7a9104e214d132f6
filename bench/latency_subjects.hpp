/// What `latency` times: something that allocates and frees, from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda_stage.hpp"
#include "gpumem/allocator.hpp"
#include "measure.hpp"
#include "policy_row.hpp"

namespace gpumem::bench {

class latency_subject {
 public:
  latency_subject() = default;
  latency_subject(const latency_subject&) = delete;
  latency_subject& operator=(const latency_subject&) = delete;
  virtual ~latency_subject() = default;

  /// Null where it fails.
  virtual void* allocate(std::size_t bytes, stream_ref s) = 0;
  virtual void release(void* p, stream_ref s) = 0;
  /// A stream for the i-th thread.
  virtual stream_ref stream(unsigned i) = 0;
  /// The part of a pair that is not the allocator's: false where there is none.
  virtual bool driver_part(stream_ref /*s*/) { return false; }
  [[nodiscard]] virtual bool caches() const { return true; }
};

/// Opened once and kept for all cases of its row.
result<std::unique_ptr<latency_subject>> open_latency_subject(const policy_row& row, const replay_setup& setup,
                                                              cuda_stage* stage);

}  // namespace gpumem::bench
