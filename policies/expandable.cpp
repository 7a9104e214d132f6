/// expandable: maps memory page by page behind reserved addresses, and reuses idle pages before it makes new ones.
///
/// Reserved memory may exceed the peak of live memory by the slack. Beyond the slack, the pool moves idle pages: it
/// unmaps them and maps them where they are needed. A move costs about as much as ten new pages and, if the idle memory
/// was used a moment ago, a wait. The default slack is chosen from the curve in docs/expandable.md.
#include <algorithm>

#include "bits.hpp"
#include "built_in.hpp"
#include "units.hpp"

namespace gpumem {
namespace {

class expandable final : public policy {
 public:
  expandable(std::uint64_t page_bytes, byte_limit slack)
      : page_{std::max<std::uint64_t>(page_bytes, 1)}, slack_{slack} {}

  [[nodiscard]] policy_needs needs() const override { return {.without_pages = "caching"}; }

  [[nodiscard]] page_rules pages(const pool_view& view) const override {
    return {.range_bytes = round_up(view.total_bytes, page_) * ranges_of_device,
            .lowest_fit_bytes = 16 * mib,
            .upper_end_bytes = 112 * kib,
            .upper_end_pool_bytes = 1 * gib};
  }

  /// A configured slack is exact to the page. By default the pool makes pages in runs, which are cheap, and some ahead
  /// of rising demand; both lower utilization a little.
  [[nodiscard]] page_request page_in(const pool_view& view, std::uint64_t need_bytes,
                                     std::uint64_t missing_bytes) const override {
    const std::uint64_t live = view.live_bytes + need_bytes;
    const std::uint64_t peak = std::max(view.peak_live_bytes, live);
    if (slack_) {
      return {.make_bytes = std::min(room_bytes(view, peak + set_slack_bytes(peak)), missing_bytes),
              .run_bytes = page_};
    }
    const bool rises = live > view.peak_live_bytes;
    const std::uint64_t run = run_bytes(view, peak, need_bytes);
    const bool single = run == page_;
    const std::uint64_t room = room_bytes(view, peak + default_slack_bytes(peak, view.moved_bytes, single));
    if (room < missing_bytes) return {.make_bytes = room, .run_bytes = run, .over_bytes = 0};
    if (rises) return {.make_bytes = std::max(missing_bytes, ahead_bytes(peak, single)), .run_bytes = run};
    // The same amount was live before, so gaps now waste memory. Making a little extra avoids further growth.
    const std::uint64_t gap = share(std::min(peak, view.reserved_bytes), gap_share);
    return {.make_bytes = missing_bytes + round_up(single ? 0 : gap, page_), .run_bytes = run};
  }

  /// The pool does not take whole segments under this policy.
  segment_request grow(const pool_view&, std::uint64_t need_bytes) override {
    return {.bytes = need_bytes, .least_bytes = need_bytes};
  }

 private:
  static constexpr std::uint64_t ranges_of_device = 4;
  /// The largest share of reserved memory; a larger share would bound nothing.
  static constexpr double most_slack = 0.999;
  // The default, chosen by the curve in docs/expandable.md.
  static constexpr double slack_share = 0.07;
  static constexpr std::uint64_t most_share_slack = 480 * mib;
  static constexpr std::uint64_t most_slack_singly = 192 * mib;  ///< near the limit, where each page can move
  /// With little live memory, moving a page costs more than making a few.
  static constexpr double slack_share_of_little = 0.15;
  static constexpr std::uint64_t least_slack = 32 * mib;
  static constexpr std::uint64_t most_slack_of_little = 256 * mib;
  /// Adds 20 times the moved bytes to the slack: pages that moved once tend to move again, which costs more.
  static constexpr double slack_for_moved = 20;
  static constexpr double most_slack_for_moved = 0.4;
  /// Bytes made ahead of a rising demand: enough that the calls cost less than the pages. Nothing while one page holds
  /// all live blocks: small blocks would divide the pages ahead, and a later large request would not fit there.
  static constexpr double ahead_share = 0.005;
  static constexpr std::uint64_t least_ahead = 20 * mib;
  static constexpr std::uint64_t most_ahead = 64 * mib;
  static constexpr double gap_share = 0.002;  ///< extra bytes made, so that a repeated step soon fits
  static constexpr double run_share = 0.06;
  static constexpr std::uint64_t least_run = 16 * mib;
  static constexpr std::uint64_t largest_run = 256 * mib;
  static constexpr double run_share_of_device = 0.002;
  /// The pool makes the last 16 GiB of the limit, or its upper half if that is more, page by page.
  static constexpr std::uint64_t singly = 16 * gib;

  static std::uint64_t share(std::uint64_t bytes, double fraction) {
    return static_cast<std::uint64_t>(static_cast<double>(bytes) * fraction);
  }
  [[nodiscard]] std::uint64_t room_bytes(const pool_view& view, std::uint64_t most) const {
    return most > view.reserved_bytes ? round_down(most - view.reserved_bytes, page_) : 0;
  }
  /// A configured share is a share of reserved memory: at 5 %, 95 % of it is in use at the peak.
  [[nodiscard]] std::uint64_t set_slack_bytes(std::uint64_t live) const {
    if (slack_.unit == byte_limit::kind::bytes) return slack_.bytes;
    return share(live, slack_.fraction / (1 - std::min(slack_.fraction, most_slack)));
  }
  [[nodiscard]] static std::uint64_t default_slack_bytes(std::uint64_t live, std::uint64_t moved, bool single) {
    const double moved_share = static_cast<double>(moved) / static_cast<double>(std::max<std::uint64_t>(live, 1));
    const double more = std::min(moved_share * slack_for_moved, most_slack_for_moved);
    const std::uint64_t of_little = std::clamp(share(live, slack_share_of_little), least_slack, most_slack_of_little);
    const std::uint64_t most = single ? most_slack_singly : most_share_slack;
    return std::max(std::min(share(live, slack_share), most) + share(live, more), std::min(of_little, most));
  }
  [[nodiscard]] std::uint64_t ahead_bytes(std::uint64_t live, bool single) const {
    const std::uint64_t ahead = std::clamp(share(live, ahead_share), least_ahead, single ? least_ahead : most_ahead);
    return live <= page_ ? 0 : round_down(ahead, page_);
  }
  /// A run moves only as a whole, so the idle part of a partly used run cannot back another place. The pool therefore
  /// makes runs while the limit is far, and single pages when it is near, because each single page can move.
  [[nodiscard]] std::uint64_t run_bytes(const pool_view& view, std::uint64_t live, std::uint64_t need_bytes) const {
    const std::uint64_t most = std::min(view.limit_bytes, view.free_at_start_bytes);
    const std::uint64_t far = std::min(most / 2, most > singly ? most - singly : 0);
    if (view.reserved_bytes + need_bytes > far) return page_;
    const std::uint64_t run =
        std::min({std::max(share(live, run_share), least_run), largest_run, share(most, run_share_of_device)});
    return std::max(round_down(run, page_), page_);
  }

  std::uint64_t page_;
  byte_limit slack_;
};

}  // namespace

built_in_policy expandable_policy() {
  return {
      {.name = "expandable",
       .summary = "page by page behind reserved addresses; reuses idle pages before it makes new ones",
       .parameters = {{.name = "slack",
                       .values = "share of what is held (`5%`) or bytes (`64MiB`)",
                       .default_text = "7% of live memory, at most 480 MiB, or 15% of it up to 256 MiB, at least 32 "
                                       "MiB; 192 MiB near the limit; "
                                       "up to 40% more where pages move",
                       .help = "how far reserved memory may exceed live memory before pages move instead of being made",
                       .check = [](std::string_view value,
                                   std::string_view what) { return parse_share_or_bytes(value, what).why(); }}},
       .variants = {"slack=5%", "slack=1%", "slack=25%"},
       .takes =
           "page by page behind reserved addresses; beyond the slack it moves idle pages instead of making new ones",
       .gives_back = "idle pages, on `trim`",
       .choose_when = "memory is short: next to no holes, at less device time than `caching`"},
      [](const policy_setup& setup) {
        byte_limit slack;
        const auto given = setup.parameters.find("slack");
        if (given != setup.parameters.end()) slack = *parse_share_or_bytes(given->second, "slack");
        return std::make_unique<expandable>(setup.page_bytes, slack);
      }};
}

}  // namespace gpumem
