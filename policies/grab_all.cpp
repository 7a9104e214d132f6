/// grab_all: TensorFlow's default. Takes all allowed memory at the first request and keeps it until the end.
///
/// A single segment fragments least, and leaves nothing for other programs. If the device had less than allowed, later
/// requests take the memory that has become free since.
#include "built_in.hpp"
#include "segment_sizes.hpp"

namespace gpumem {
namespace {

class grab_all final : public policy {
 public:
  [[nodiscard]] policy_needs needs() const override { return {.everything = true}; }

  segment_request first(const pool_view& view) override {
    return {.bytes = allowed_bytes(view), .least_bytes = granule_bytes(view)};
  }

  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    return request_within_limit(view, allowed_bytes(view), need_bytes);
  }

  [[nodiscard]] bool gives_back(give_back, const pool_view&) const override { return false; }
};

}  // namespace

built_in_policy grab_all_policy() {
  return {{.name = "grab_all",
           .summary = "everything allowed, at first use; never gives back",
           .takes = "everything allowed, on every device, at the first request to any of them",
           .gives_back = "never",
           .choose_when = "the program has the GPU to itself: one segment fragments least"},
          [](const policy_setup&) { return std::make_unique<grab_all>(); }};
}

}  // namespace gpumem
