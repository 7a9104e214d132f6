/// expandable: page by page behind reserved addresses. Idle pages, wherever they are, serve before new ones are made.
///
/// What is held may exceed the most that was live by the slack; beyond it a page that is missing is
/// unmapped from where it is idle and mapped where it is wanted, which costs about as much as ten new ones and, where
/// the idle memory was used a moment ago, a wait. docs/expandable.md has the curve from which the default is chosen.
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
            .upper_end_pool_bytes = 1 * gib,
            .looks_ahead = static_cast<bool>(slack_)};
  }

  /// A slack that was set holds to the page. By default a little more is made ahead while the demand rises, and in
  /// runs, which are cheap to make; both cost some of what the pages could serve.
  [[nodiscard]] page_request page_in(const pool_view& view, std::uint64_t need_bytes,
                                     std::uint64_t missing_bytes) const override {
    const std::uint64_t live = view.live_bytes + need_bytes;
    const std::uint64_t peak = std::max(view.peak_live_bytes, live);
    if (slack_) {
      return {.make_bytes = std::min(room_bytes(view, peak + set_slack_bytes(peak)), missing_bytes),
              .run_bytes = page_};
    }
    const bool rises = live > view.peak_live_bytes;
    const std::uint64_t slack = default_slack_bytes(peak, view.moved_bytes);
    // What fitted before and does not now lies beside gaps. A little more at once, and it is the last time.
    const std::uint64_t room = room_bytes(view, peak + (rises ? slack : slack + slack / 2));
    const std::uint64_t run = run_bytes(view, peak, need_bytes);
    if (room < missing_bytes) return {.make_bytes = room, .run_bytes = run, .over_bytes = 0};
    return {.make_bytes = rises ? std::max(missing_bytes, ahead_bytes(peak))
                                : missing_bytes + round_up(share(peak, gap_share), page_),
            .run_bytes = run};
  }

  /// Whole segments are not taken.
  segment_request grow(const pool_view&, std::uint64_t need_bytes) override {
    return {.bytes = need_bytes, .least_bytes = need_bytes};
  }

 private:
  static constexpr std::uint64_t ranges_of_device = 4;
  /// Of what is held; more is as good as none.
  static constexpr double most_slack = 0.999;
  // The default, chosen by the curve in docs/expandable.md.
  static constexpr double slack_share = 0.08;
  static constexpr std::uint64_t most_share_slack = 480 * mib;
  /// Where little is live a page that moves costs more than a few that are made.
  static constexpr double slack_share_of_little = 0.15;
  static constexpr std::uint64_t least_slack = 32 * mib;
  static constexpr std::uint64_t most_slack_of_little = 256 * mib;
  /// What has moved once moves again: 16 times as much is added to the slack, which costs less than moving on.
  static constexpr double slack_for_moved = 16;
  static constexpr double most_slack_for_moved = 0.4;
  /// Ahead of demand: enough that the calls for it cost less than its pages do.
  static constexpr double ahead_share = 0.005;
  static constexpr std::uint64_t least_ahead = 20 * mib;
  static constexpr std::uint64_t most_ahead = 64 * mib;
  static constexpr double gap_share = 0.002;  ///< more than what is missing, so that a step that repeats fits in a few
  static constexpr double run_share = 0.1;
  static constexpr std::uint64_t least_run = 16 * mib;
  static constexpr std::uint64_t largest_run = 256 * mib;
  static constexpr double run_share_of_device = 0.002;
  /// The last so many bytes of what the pool may hold, or its upper half, are made page by page.
  static constexpr std::uint64_t singly = 16 * gib;

  static std::uint64_t share(std::uint64_t bytes, double of) {
    return static_cast<std::uint64_t>(static_cast<double>(bytes) * of);
  }
  [[nodiscard]] std::uint64_t room_bytes(const pool_view& view, std::uint64_t most) const {
    return most > view.reserved_bytes ? round_down(most - view.reserved_bytes, page_) : 0;
  }
  /// A share that was set is of what is held: 5 % leave 95 % of it in use at the peak.
  [[nodiscard]] std::uint64_t set_slack_bytes(std::uint64_t live) const {
    if (slack_.unit == byte_limit::kind::bytes) return slack_.bytes;
    return share(live, slack_.fraction / (1 - std::min(slack_.fraction, most_slack)));
  }
  [[nodiscard]] static std::uint64_t default_slack_bytes(std::uint64_t live, std::uint64_t moved) {
    const double moved_share = static_cast<double>(moved) / static_cast<double>(std::max<std::uint64_t>(live, 1));
    const double more = std::min(moved_share * slack_for_moved, most_slack_for_moved);
    const std::uint64_t of_little = std::clamp(share(live, slack_share_of_little), least_slack, most_slack_of_little);
    return std::max(std::min(share(live, slack_share), most_share_slack) + share(live, more), of_little);
  }
  [[nodiscard]] std::uint64_t ahead_bytes(std::uint64_t live) const {
    return round_down(std::clamp(share(live, ahead_share), least_ahead, most_ahead), page_);
  }
  /// A run can only be moved as a whole, so one that is used in part is lost to all others. Runs therefore are made
  /// where the limit is far, and single pages, which can all be moved, where it is near.
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
       .summary = "page by page behind reserved addresses; idle pages serve elsewhere before new ones do",
       .parameters = {{.name = "slack",
                       .values = "share of what is held (`5%`) or bytes (`64MiB`)",
                       .default_text = "8% of what is live, at most 480 MiB, or 15% of it up to 256 MiB, at least 32 "
                                       "MiB; up to 40% more where pages "
                                       "move",
                       .help = "how far what is held may exceed what is live before pages are moved instead of made",
                       .check = [](std::string_view value,
                                   std::string_view what) { return parse_share_or_bytes(value, what).why(); }}},
       .variants = {"slack=5%", "slack=1%", "slack=25%"},
       .takes = "page by page behind reserved addresses; what is idle is moved before more than the slack is taken",
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
