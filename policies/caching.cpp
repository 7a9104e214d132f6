/// caching: PyTorch's rules. The segment's size depends on the request, and idle segments go back under pressure.
///
/// | request       | segment, as in CUDACachingAllocator   |
/// |---------------|---------------------------------------|
/// | up to 1 MiB   | 2 MiB                                 |
/// | below 10 MiB  | 20 MiB                                |
/// | 10 MiB and up | its own size, rounded up to 2 MiB     |
///
/// Small requests (up to 1 MiB) and larger ones never share a segment, so that small blocks do not pin large segments.
#include "built_in.hpp"
#include "segment_sizes.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t largest_small_request = 1 * mib;
constexpr std::uint64_t small_segment = 2 * mib;
constexpr std::uint64_t own_segment_from = 10 * mib;
constexpr std::uint64_t shared_segment = 20 * mib;
constexpr std::uint64_t own_segment_step = 2 * mib;

constexpr std::uint64_t segment_for(std::uint64_t need_bytes) noexcept {
  if (need_bytes <= largest_small_request) return small_segment;
  if (need_bytes < own_segment_from) return shared_segment;
  return checked_round_up(need_bytes, own_segment_step).value_or(UINT64_MAX);
}

class caching final : public policy {
 public:
  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    return request_within_limit(view, segment_for(need_bytes), need_bytes);
  }

  /// Tries only the full segment and the exact need: sizes in between fit later requests of the class badly.
  std::uint64_t smaller(std::uint64_t refused_bytes, std::uint64_t least_bytes) override {
    return refused_bytes > least_bytes ? least_bytes : 0;
  }

  [[nodiscard]] unsigned segment_class(std::uint64_t bytes) const override {
    return bytes <= largest_small_request ? 0 : 1;
  }
  [[nodiscard]] unsigned segment_classes() const override { return 2; }

  [[nodiscard]] bool gives_back(give_back, const pool_view&) const override { return true; }
};

}  // namespace

built_in_policy caching_policy() {
  return {{.name = "caching",
           .summary = "in segments per size class; gives idle ones back under pressure",
           .takes = "2 MiB segments for requests up to 1 MiB, 20 MiB below 10 MiB, else the request in steps of 2 MiB",
           .gives_back = "idle segments, on `trim` and before a request would fail",
           .choose_when = "sizes vary, and other programs need the idle memory"},
          [](const policy_setup&) { return std::make_unique<caching>(); }};
}

}  // namespace gpumem
