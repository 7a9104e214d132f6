/// Records requests and blocks of a schedule's threads, and judges the allocator's answers by its rules.
///
/// Times are moments: numbers that rise with each event. A block counts as held from the begin of its request to the
/// end of its free, so the rules never blame the allocator for a race between two calls of the program.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "scenario.hpp"

namespace gpumem::schedules {

using moment = std::uint64_t;

struct window {
  static constexpr moment open = UINT64_MAX;
  moment begin = 0;
  moment end = open;

  [[nodiscard]] bool meets(const window& second) const noexcept { return begin <= second.end && second.begin <= end; }
};

class history {
 public:
  explicit history(const allocator_setup& setup);

  // --- events -------------------------------------------------------------------------------------------------
  struct asked {
    std::uint64_t bytes = 0;  // rounded up to 512
    std::uint32_t pool = 0;
    window during{};
    std::uint64_t begin_ns = 0;
    std::uint64_t end_ns = 0;
    std::uint64_t work_done_ns = 0;  // when all work is done that was enqueued before its end
    bool was_refused = false;
    bool may_fail = false;  // an injected fault may make it fail
    bool judged = false;
    std::string answer{};
  };
  std::size_t begin_request(std::uint32_t pool, std::uint64_t bytes, std::uint64_t now_ns);
  void served(std::size_t request, address begin, std::uint64_t now_ns);
  void refused(std::size_t request, std::string answer, std::uint64_t now_ns, std::uint64_t work_done_ns,
               bool may_fail);
  /// The block of that request is free from here on.
  void freed(std::size_t request);
  /// Begins another operation that may withhold a pool's memory while it runs: a trim, a lower limit, the end of a
  /// stream, a fence recorded by a free or a use.
  std::size_t begin_intrusion();
  void end_intrusion(std::size_t index);
  /// From the begin of a capture to the end of the release of its graph, memory may be unavailable.
  std::size_t begin_capture();
  void end_capture(std::size_t index);
  std::size_t begin_limit(std::uint32_t pool, std::uint64_t bytes);
  void end_limit(std::size_t index);
  /// Removes a limit that was refused.
  void drop_limit(std::size_t index) { limits_[index].in_force.end = ++latest_; }
  /// From now on a device call may fail.
  void fail_device() noexcept { device_failed_ = true; }
  [[nodiscard]] bool device_fails() const noexcept { return device_failed_; }

  /// The request took a segment. A mapped run of pages counts as a segment.
  void took_segment(std::size_t request, const device& card, address begin, std::uint64_t bytes);
  void returned_segments(const device& card, address begin, std::uint64_t bytes);
  /// Judges a segment that a pool takes to serve the request. Returns the fault; empty if there is none.
  std::string judge_growth(std::size_t request, const device& card, std::uint64_t bytes, std::uint64_t now_ns,
                           std::uint64_t work_done_ns) const;

  // --- verdicts: empty where nothing is wrong -------------------------------------------------------------------
  /// Judges every refusal whose overlapping requests have ended.
  std::string judge_refusals();
  /// The largest correct value of a pool's peak_live_bytes.
  [[nodiscard]] std::uint64_t most_live_bytes(std::uint32_t pool) const;

 private:
  struct held_block {
    std::size_t request;
    std::uint32_t pool;
    address begin;
    std::uint64_t bytes;
    window held;
    moment served = 0;  // within `held`
  };
  struct held_segment {
    std::uint32_t pool;
    const device* card;
    address begin;
    std::uint64_t bytes;
    bool of_small_requests;
    window present;
  };
  struct pool_limit {
    std::uint32_t pool;
    std::uint64_t bytes;
    window in_force{};
    moment set = window::open;  // its call has returned
  };

  [[nodiscard]] bool stays_whole(const held_segment& segment, std::uint64_t bytes) const noexcept;
  std::string judge(const asked& asked_for) const;
  [[nodiscard]] std::uint64_t busy_bytes(const asked& asked_for) const;
  [[nodiscard]] bool is_small(std::uint64_t bytes) const noexcept;

  allocator_setup setup_;
  bool paged_;
  bool polls_;  // whether a pool polls all fences before it grows; not if that could invalidate an unknown capture
  moment latest_ = 0;
  std::vector<asked> requests_;
  std::vector<held_block> blocks_;
  std::vector<held_segment> segments_;
  std::vector<window> intrusions_;
  std::vector<window> captures_;
  std::vector<pool_limit> limits_;
  std::uint64_t freed_bytes_ = 0;
  bool device_failed_ = false;
};

}  // namespace gpumem::schedules
