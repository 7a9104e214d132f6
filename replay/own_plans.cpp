#include "own_plans.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "gpumem/policy.hpp"
#include "plan_file.hpp"

namespace gpumem::bench {

std::vector<plan::recorded_op> recorded_ops(const trace& recorded) {
  std::vector<plan::recorded_op> ops;
  ops.reserve(recorded.ops.size());
  for (const trace_op& op : recorded.ops) {
    ops.push_back({.bytes = op.bytes, .block = op.slot, .stream = op.stream, .free = op.kind == op_kind::free});
  }
  return ops;
}

bool only_follows_plan(const std::string& policy) {
  const result<policy_entry> entry = find_policy(policy);
  return entry && entry->needs.plan.follows && !entry->needs.plan.records;
}

bool needs_own_plan(const policy_row& row) {
  if (!row.baseline.empty() || !row.config.plan_path.empty()) return false;
  return only_follows_plan(row.config.policy) ||
         std::any_of(row.config.pools.begin(), row.config.pools.end(),
                     [&](const pool_spec& pool) { return !pool.policy.empty() && only_follows_plan(pool.policy); });
}

result<own_plan> own_plan::make(const trace& recorded, std::chrono::milliseconds time_limit, std::uint64_t most_steps,
                                stream_reuse reuse) {
  plan::solve_options limits;
  limits.time_limit = time_limit;
  limits.most_steps = most_steps;
  const result<plan::step_plan> made = plan::make_plan(recorded_ops(recorded), limits, nullptr, reuse);
  if (!made) return status{made.code(), fmt::format("{}: {}", recorded.name, made.why().message())};
  own_plan plan_file;
  plan_file.file_ = ::memfd_create("gpumem_plan", MFD_CLOEXEC);
  const std::string text = plan::plan_text(*made);
  std::string_view rest = text;
  while (plan_file.file_ >= 0 && !rest.empty()) {
    const ssize_t written = ::write(plan_file.file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  if (plan_file.file_ < 0 || !rest.empty()) {
    return status{errc::out_of_memory, fmt::format("{}: no memory for its plan of {} bytes: {}", recorded.name,
                                                   text.size(), std::strerror(errno))};
  }
  return plan_file;
}

own_plan::~own_plan() {
  if (file_ >= 0) ::close(file_);
}
own_plan::own_plan(own_plan&& source) noexcept : file_{std::exchange(source.file_, -1)} {}
own_plan& own_plan::operator=(own_plan&& source) noexcept {
  std::swap(file_, source.file_);
  return *this;
}

std::string own_plan::path() const { return fmt::format("/proc/self/fd/{}", file_); }

policy_row own_plan::followed_by(policy_row row) const {
  row.config.plan_path = path();
  row.own_plan = true;
  return row;
}

}  // namespace gpumem::bench
