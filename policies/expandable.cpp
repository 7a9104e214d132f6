/// expandable: maps memory page by page behind reserved addresses, and reuses idle pages before it makes new ones.
///
/// Reserved memory may exceed the peak of live memory by the slack, with the pages that are made ahead of demand. By
/// default the slack is half a step (growth_rule.hpp), which is what steps waste on average. Beyond it, the pool moves
/// free pages: it unmaps them and maps them where they are needed.
///
/// Without a configured slack, the first stream's blocks and those of others lie in ranges of their own. Pages then
/// move more often, since what one stream frees no longer serves another where it is, but they stop once the program
/// repeats its requests (`pool_view::repeats`), so from the fourth pass through a step on. The addresses then get the
/// pages that they lack, and keep them: soon a step neither moves pages nor makes any. Pages also stop moving once
/// their moves have cost what the pool's memory is worth (ski rental, growth_rule.hpp). At a limit they still move.
///
/// New pages come in runs, which cost little and move only as a whole: one small block in a run keeps all of it where
/// it is. At a new peak of live memory, as when a program loads what stays, one run fills a gap until pages have moved.
/// Otherwise a run is at most a step, or a third of one for a request that the slack does not cover. Below the peak,
/// the page in which the request ends, where other blocks will begin, is a run of its own (page_manager::plan).
///
/// | parameter       |                                                                           |
/// |-----------------|---------------------------------------------------------------------------|
/// | `exchange_rate` | as for growth; the default is 16 times as high (`scarcity`)               |
/// | `singly`        | the last 16 GiB are made page by page, since single pages can always move |
///
/// The least step is growth's. Requests of that size take the lowest place. `page_rules::upper_end_bytes` and
/// `upper_end_pool_bytes` place small blocks.
#include <algorithm>

#include "bits.hpp"
#include "built_in.hpp"
#include "segment_sizes.hpp"
#include "units.hpp"

namespace gpumem {
namespace {

/// By default a byte is worth this many times more than under growth, because the policy is for scarce memory.
constexpr std::uint64_t scarcity = 16;
constexpr std::uint64_t default_exchange_rate = scarcity * growth_rule::default_exchange_rate;

class expandable final : public policy {
 public:
  expandable(std::uint64_t page_bytes, byte_limit slack, growth_rule rule)
      : page_{std::max<std::uint64_t>(page_bytes, 1)}, slack_{slack}, rule_{rule} {}

  [[nodiscard]] policy_needs needs() const override { return {.without_pages = "caching"}; }

  [[nodiscard]] page_rules pages(const pool_view& view) const override {
    return {.range_bytes = address_range_bytes(view),
            .lowest_fit_bytes = growth_rule::least_step_bytes,
            .upper_end_bytes = 112 * kib,
            .upper_end_pool_bytes = gib,
            .streams_apart = !slack_};
  }
  [[nodiscard]] unsigned segment_classes() const override { return page_rules::classes_apart; }

  /// A configured slack is exact to the page. By default, runs and pages made ahead lower utilization a little.
  [[nodiscard]] page_request page_in(const pool_view& view, std::uint64_t need_bytes,
                                     std::uint64_t missing_bytes) const override {
    const std::uint64_t live = view.live_bytes + need_bytes;
    const std::uint64_t peak = std::max(view.peak_live_bytes, live);
    if (slack_) {
      return {.make_bytes = std::min(room_bytes(view, peak + set_slack_bytes(peak)), missing_bytes),
              .run_bytes = page_};
    }
    const std::uint64_t step = in_pages(rule_.step_bytes(view.reserved_bytes, true));
    const std::uint64_t slack = step / 2;
    const std::uint64_t room = room_bytes(view, peak + slack);
    const bool settled = has_settled(view);
    page_request answer{.make_bytes = room, .run_bytes = in_pages(step / 3), .over_bytes = 0};
    if (room >= missing_bytes || settled) {
      // While one page holds all blocks, no page is made ahead: small blocks would divide it before a large one comes.
      // Once the program repeats its step, half a step is made at a time, so that its addresses soon lack no page.
      const bool rises = live > view.peak_live_bytes && live > page_;
      const std::uint64_t ahead = view.repeats ? slack : rises ? std::min(room, step) : 0;
      const bool at_peak = view.live_bytes == view.peak_live_bytes;
      answer = {.make_bytes = std::max(missing_bytes, ahead),
                .run_bytes = at_peak && view.moved_bytes == 0 ? UINT64_MAX : step,
                .end_apart = !at_peak,
                .other_range_first = settled};
    }
    if (is_near_limit(view, need_bytes)) answer.run_bytes = page_;
    return answer;
  }

  /// The pool does not take whole segments under this policy.
  segment_request grow(const pool_view&, std::uint64_t need_bytes) override {
    return {.bytes = need_bytes, .least_bytes = need_bytes};
  }

 private:
  static constexpr std::uint64_t singly = 16 * gib;

  /// Whether pages stop moving by default.
  [[nodiscard]] bool has_settled(const pool_view& view) const {
    return view.repeats ||
           rule_.moves_cost(view.moved_bytes, std::max(view.reserved_bytes, view.peak_live_bytes), page_);
  }
  [[nodiscard]] std::uint64_t in_pages(std::uint64_t bytes) const { return std::max(round_down(bytes, page_), page_); }
  [[nodiscard]] std::uint64_t room_bytes(const pool_view& view, std::uint64_t most) const {
    return most > view.reserved_bytes ? round_down(most - view.reserved_bytes, page_) : 0;
  }
  /// A configured share is a share of reserved memory: at 5 %, 95 % of it is in use at the peak.
  [[nodiscard]] std::uint64_t set_slack_bytes(std::uint64_t live) const {
    if (slack_.unit == byte_limit::kind::bytes) return slack_.bytes;
    const double used = 1 - slack_.fraction;
    const auto most = static_cast<double>(UINT64_MAX / 2);  // a slack of 100 % bounds nothing
    const double share = used > 0 ? static_cast<double>(live) * slack_.fraction / used : most;
    return static_cast<std::uint64_t>(std::min(share, most));
  }
  /// A run moves only as a whole, so the idle part of a partly used run cannot back another place. The pool therefore
  /// makes runs in the first half of the limit, and while more than `singly` is left; then it makes single pages.
  [[nodiscard]] static bool is_near_limit(const pool_view& view, std::uint64_t need_bytes) {
    const std::uint64_t most = std::min(view.limit_bytes, view.free_at_start_bytes);
    return view.reserved_bytes + need_bytes > std::min(most / 2, most - std::min(most, singly));
  }

  std::uint64_t page_;
  byte_limit slack_;
  growth_rule rule_;
};

}  // namespace

built_in_policy expandable_policy() {
  return {
      {.name = "expandable",
       .summary = "page by page behind reserved addresses; reuses idle pages before it makes new ones",
       .parameters = {{.name = "slack",
                       .values = "share of what is held (`5%`) or bytes (`64MiB`)",
                       .default_text = "half a step of 16 MiB or more; no bound once a step repeats a fourth time",
                       .help = "how far reserved memory may exceed live memory before pages move instead of being made",
                       .check = [](std::string_view value,
                                   std::string_view what) { return parse_share_or_bytes(value, what).why(); }},
                      exchange_rate_parameter(", less slack, more moves; `0`: no move below the limit",
                                              default_exchange_rate)},
       .variants = {"slack=5%", "slack=1%", "slack=25%"},
       .takes = "page by page behind reserved addresses; beyond the slack it moves free pages",
       .gives_back = "idle pages, on `trim`",
       .choose_when = "memory is short: next to no holes, at about the device time of `caching`"},
      [](const policy_setup& setup) {
        const std::string_view given = setup.parameter("slack");
        const byte_limit slack = given.empty() ? byte_limit{} : *parse_share_or_bytes(given, "slack");
        return std::make_unique<expandable>(setup.page_bytes, slack, rule_of(setup, default_exchange_rate));
      }};
}

}  // namespace gpumem
