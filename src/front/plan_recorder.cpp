#include "plan_recorder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>

#include "gpumem/settings.hpp"
#include "log.hpp"
#include "plan_file.hpp"
#include "text.hpp"

namespace gpumem {

result<std::unique_ptr<allocation_recorder>> plan_recorder::open(std::string path, writes when, std::size_t most,
                                                                 stream_reuse reuse) {
  // Fails now rather than at the end of the program.
  const std::filesystem::path folder = std::filesystem::path{path}.parent_path();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
    return status{errc::bad_setting,
                  fmt::format("GPUMEM_PLAN={}: cannot be written: {}; expected a path in a writable folder",
                              printable(path), std::strerror(errno))};
  }
  std::error_code why;
  std::string place = std::filesystem::absolute(path, why).string();  // the program may change its folder
  return std::unique_ptr<allocation_recorder>{
      new plan_recorder{why ? std::move(path) : std::move(place), when, most, reuse}};
}

const char* plan_recorder::policy_name() const noexcept {
  return when_ == writes::always ? "planned:record" : "planned:renew";
}

bool plan_recorder::room() {
  if (!full_ && ops_.size() < most_) return true;
  if (!full_) {
    full_ = true;
    log_line(fmt::format("{}: recording ends after {} operations; the plan is of these", policy_name(), ops_.size()));
  }
  return false;
}

void plan_recorder::allocated(address begin, std::uint64_t requested_bytes, stream_ref user_stream) noexcept {
  const mutex_lock lock{mutex_};
  try {
    if (finished_ || !room()) return;
    const auto stream =
        streams_.try_emplace(user_stream.handle, static_cast<std::uint16_t>(streams_.size())).first->second;
    ops_.push_back({.bytes = requested_bytes, .block = next_block_, .stream = stream, .free = false});
    blocks_[begin] = next_block_++;
  } catch (const std::exception&) {
    full_ = true;  // no memory: the plan covers the requests so far
  }
}

void plan_recorder::freed(address begin, std::uint64_t requested_bytes, stream_ref /*order*/) noexcept {
  const mutex_lock lock{mutex_};
  try {
    const auto live = blocks_.find(begin);
    if (finished_ || live == blocks_.end() || !room()) return;
    ops_.push_back({.bytes = requested_bytes, .block = live->second, .stream = 0, .free = true});
    blocks_.erase(live);
  } catch (const std::exception&) {
    full_ = true;
  }
}

// Returns true if the followed plan stays, because a new plan would be no better.
bool plan_recorder::stays(const statistics& at_end, const std::vector<plan::recorded_op>& ops) const {
  const std::uint64_t requests = at_end.plan_placements + at_end.plan_departures;
  if (requests == 0) return false;  // there was no plan
  if (at_end.plan_departures <= requests / requests_a_departure) return true;
  const result<plan::step_plan> existing = plan::read_plan(path_);
  const bool same = existing && plan::is_plan_of(*existing, ops).ok();
  log_line(fmt::format("planned:renew: {} of {} requests departed from the plan, which {}", at_end.plan_departures,
                       requests, same ? "stays, since it is of these requests" : "is made anew"));
  return same;
}

status plan_recorder::finish(const std::function<statistics()>& at_end) {
  std::vector<plan::recorded_op> ops;  // placed without the lock, so that other threads can continue
  {
    const mutex_lock lock{mutex_};
    finished_ = true;
    ops.swap(ops_);
  }
  if (ops.empty()) return {};
  try {
    if (when_ == writes::where_departed && stays(at_end(), ops)) return {};
    return write_plan_of(ops);
  } catch (const std::exception& e) {  // no memory; this may run in a destructor
    return {errc::out_of_memory, fmt::format("{}: no plan of {} operations: {}", policy_name(), ops.size(), e.what())};
  }
}

status plan_recorder::write_plan_of(const std::vector<plan::recorded_op>& ops) const {
  plan::solution found;
  const result<plan::step_plan> made = plan::make_plan(ops, {.time_limit = time_limit}, &found, reuse_);
  if (!made) return {made.code(), fmt::format("{}: {}", policy_name(), made.why().message())};
  if (status ok = plan::write_plan(path_, *made); !ok) {
    return {ok.code(), fmt::format("GPUMEM_PLAN={}", ok.message())};
  }
  log_line(fmt::format("{}: {} allocations placed in {} ({} live at most) in {:.1f} s: {}", policy_name(),
                       made->allocations.size(), format_bytes(made->height_bytes), format_bytes(made->peak_bytes),
                       static_cast<double>(found.took.count()) * 1e-6, printable(path_)));
  return {};
}

}  // namespace gpumem
