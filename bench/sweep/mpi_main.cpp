/// gpumem_bench_mpi: a sweep over all ranks of an MPI job. It has no other command.
///
/// Only the main thread calls MPI. Other threads start the units in child processes without MPI. All ranks draw units
/// from a counter on rank 0 with MPI_Fetch_and_op. Such a call makes progress only while rank 0 is inside MPI, so rank
/// 0's main thread enters MPI every millisecond. Exit status: as gpumem_bench sweep, the worst of all ranks.
#include <fmt/format.h>
#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "assign_or_return.hpp"
#include "folder.hpp"
#include "output_file.hpp"
#include "print_error.hpp"
#include "runner.hpp"
#include "session.hpp"
#include "sweep_progress.hpp"

namespace {

using namespace gpumem;
using namespace gpumem::bench::sweep;

constexpr std::chrono::milliseconds progress_interval{1};
enum counter : int { drawn, done, failed, counters };

/// Counters on rank 0, to which every rank adds. Main thread only.
class shared_counters {
 public:
  shared_counters() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const MPI_Aint bytes = rank == 0 ? counters * static_cast<MPI_Aint>(sizeof(std::int64_t)) : 0;
    MPI_Win_allocate(bytes, sizeof(std::int64_t), MPI_INFO_NULL, MPI_COMM_WORLD, &values_, &window_);
    if (rank == 0) std::memset(values_, 0, static_cast<std::size_t>(bytes));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window_);
  }
  ~shared_counters() {
    MPI_Win_unlock_all(window_);
    MPI_Win_free(&window_);
  }
  shared_counters& operator=(shared_counters&&) = delete;

  /// Adds and returns the previous value.
  std::int64_t add(counter selected, std::int64_t value) {
    std::int64_t before = 0;
    MPI_Fetch_and_op(&value, &before, MPI_INT64_T, 0, selected, value == 0 ? MPI_NO_OP : MPI_SUM, window_);
    MPI_Win_flush(0, window_);
    return before;
  }

 private:
  std::int64_t* values_ = nullptr;
  MPI_Win window_ = MPI_WIN_NULL;
};

/// Draws units from the shared counter. Worker threads request them; the main thread answers in `serve`.
class shared_source final : public unit_source {
 public:
  shared_source(const std::vector<std::uint32_t>& units, sweep_progress& progress, bool root)
      : units_{units}, progress_{progress}, root_{root} {}

  std::optional<std::uint32_t> next() override {
    request mine;
    std::unique_lock lock{mutex_};
    waiting_.push_back(&mine);
    asked_.notify_one();
    answered_.wait(lock, [&] { return mine.answered; });
    return mine.unit;
  }
  void done(bool unit_failed) override {
    const std::lock_guard lock{mutex_};
    ++unreported_done_;
    if (unit_failed) ++unreported_failed_;
    asked_.notify_one();
  }
  /// Call when all workers have finished.
  void end() {
    const std::lock_guard lock{mutex_};
    ended_ = true;
    asked_.notify_one();
  }

  /// Answers requests until `end`. Main thread only.
  void serve(shared_counters& all) {
    std::unique_lock lock{mutex_};
    while (!ended_ || unreported_done_ != 0) {
      const auto something = [&] { return ended_ || !waiting_.empty() || unreported_done_ != 0; };
      if (root_) {
        asked_.wait_for(lock, progress_interval, something);
      } else {
        asked_.wait(lock, something);
      }
      std::deque<request*> requests;
      requests.swap(waiting_);
      const std::int64_t done_now = std::exchange(unreported_done_, 0);
      const std::int64_t failed_now = std::exchange(unreported_failed_, 0);
      lock.unlock();
      if (done_now != 0) all.add(counter::done, done_now);
      if (failed_now != 0) all.add(counter::failed, failed_now);
      for (request* each : requests) {
        const auto position = static_cast<std::size_t>(all.add(counter::drawn, 1));
        if (position < units_.size()) each->unit = units_[position];
      }
      make_progress(all);
      lock.lock();
      for (request* each : requests) each->answered = true;
      if (!requests.empty()) answered_.notify_all();
    }
  }
  /// On rank 0: lets the calls of other ranks make progress, and shows the progress of all.
  void make_progress(shared_counters& all) {
    if (!root_) return;
    int flag = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    const auto current = std::chrono::steady_clock::now();
    if (!progress_.shown() || current - shown_ < std::chrono::milliseconds{200}) return;
    shown_ = current;
    progress_.show(static_cast<std::uint64_t>(all.add(counter::done, 0)),
                   static_cast<std::uint64_t>(all.add(counter::failed, 0)));
  }

 private:
  struct request {
    std::optional<std::uint32_t> unit;
    bool answered = false;
  };
  const std::vector<std::uint32_t>& units_;
  sweep_progress& progress_;
  const bool root_;
  std::mutex mutex_;
  std::condition_variable asked_;
  std::condition_variable answered_;
  std::deque<request*> waiting_;
  std::int64_t unreported_done_ = 0;
  std::int64_t unreported_failed_ = 0;
  bool ended_ = false;
  std::chrono::steady_clock::time_point shown_{};
};

/// Sends `text` from rank 0 to all ranks.
void broadcast(std::string& text) {
  std::uint64_t bytes = text.size();
  MPI_Bcast(&bytes, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  text.resize(bytes);
  constexpr std::uint64_t piece = std::uint64_t{1} << 30;  // counts are of type int
  for (std::uint64_t offset = 0; offset < bytes; offset += piece) {
    MPI_Bcast(text.data() + offset, static_cast<int>(std::min(piece, bytes - offset)), MPI_BYTE, 0, MPI_COMM_WORLD);
  }
}

template <typename value>
std::string bytes_of(const std::vector<value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(value)};
}
template <typename value>
std::vector<value> values_of(const std::string& bytes) {
  std::vector<value> values(bytes.size() / sizeof(value));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Whether `rank_ok` is true on all ranks. Requires that a rank where it is false has reported the error.
bool all_ranks_ok(bool rank_ok) {
  int mine = rank_ok ? 1 : 0;
  int all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return all != 0;
}

/// Waits for all ranks without busy waiting, because others may be in long units.
void wait_for_ranks(shared_source& source, shared_counters& all) {
  MPI_Request barrier = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &barrier);
  for (int met = 0; met == 0;) {
    MPI_Test(&barrier, &met, MPI_STATUS_IGNORE);
    if (met != 0) return;
    source.make_progress(all);
    std::this_thread::sleep_for(progress_interval);
  }
}

struct shared_plan {
  sweep_plan plan;
  std::vector<std::uint32_t> left;
};

/// Reads the manifest, the traces and the folder. Rank 0 only.
result<shared_plan> plan_on_rank_0(const sweep_arguments& arguments) {
  ASSIGN_OR_RETURN(auto plan, plan_sweep(arguments, unit_program()));
  if (status ready = prepare_folder(arguments.folder, plan); !ready) return ready;
  ASSIGN_OR_RETURN(auto left, units_left(arguments.folder, plan, arguments.again));
  return shared_plan{std::move(plan), std::move(left)};
}

std::string sources_text(const std::vector<bench::sweep::trace_source>& all) {
  std::string text;
  for (const auto& each : all) {
    text += fmt::format("{}\n{}\n{:d} {} {} {:a}\n", each.path, each.name, each.workload, each.content[0],
                        each.content[1], each.ops);
  }
  return text;
}

std::vector<bench::sweep::trace_source> sources_from(const std::string& text) {
  std::vector<bench::sweep::trace_source> all;
  std::string_view rest = text;
  const auto line = [&rest] {
    const std::size_t end = rest.find('\n');
    std::string first{rest.substr(0, end)};
    rest.remove_prefix(end + 1);
    return first;
  };
  while (!rest.empty()) {
    bench::sweep::trace_source each;
    each.path = line();
    each.name = line();
    int workload = 0;
    unsigned long long high = 0;
    unsigned long long low = 0;
    (void)std::sscanf(line().c_str(), "%d %llu %llu %la", &workload, &high, &low, &each.ops);
    each.workload = workload != 0;
    each.content = {high, low};
    all.push_back(std::move(each));
  }
  return all;
}

/// Gives every rank the plan of rank 0. Empty if rank 0 could not make a plan; rank 0 has then reported the error.
std::optional<shared_plan> share_plan(const sweep_arguments& arguments, int rank) {
  std::optional<shared_plan> mine;
  if (rank == 0) {
    auto made = plan_on_rank_0(arguments);
    if (made) {
      mine = *std::move(made);
    } else {
      (void)complain(made.why(), bad_input);
    }
  }
  if (!all_ranks_ok(rank != 0 || mine.has_value())) return std::nullopt;
  std::string sources = mine ? sources_text(mine->plan.traces) : "";
  std::string version = mine ? mine->plan.version : "";
  std::string left = mine ? bytes_of(mine->left) : "";
  for (std::string* each : {&sources, &version, &left}) broadcast(*each);
  if (rank == 0) return mine;
  auto definition = read_manifest(arguments.manifest);  // rank 0 has read this file without an error
  if (!definition) {
    (void)complain(definition.why(), bad_input);
    return std::nullopt;
  }
  return shared_plan{make_plan(*std::move(definition), version, sources_from(sources)), values_of<std::uint32_t>(left)};
}

int run_ranks(const sweep_arguments& arguments, int rank) {
  std::optional<shared_plan> shared = share_plan(arguments, rank);
  if (!all_ranks_ok(shared.has_value())) return bad_input;
  const std::size_t all = shared->plan.units.size();
  result<run_outcome> ran{run_outcome{}};
  std::int64_t failed_units = 0;
  {
    sweep_progress progress{all - shared->left.size(), all, arguments.quiet || rank != 0, arguments.lines && rank == 0,
                            rank == 0};
    shared_counters counts;
    shared_source source{shared->left, progress, rank == 0};
    std::thread runner{[&] {
      const run_options run{unit_program(), arguments.folder, fmt::format("rank{}", rank),
                            arguments.job_count == 0 ? 1 : arguments.job_count, arguments.unit_time_limit};
      ran = run_units(shared->plan, run, source);
      source.end();
    }};
    source.serve(counts);
    runner.join();
    wait_for_ranks(source, counts);
    failed_units = rank == 0 ? counts.add(counter::failed, 0) : 0;
  }
  if (!ran) (void)complain(ran.why(), bad_input);
  const bool well = all_ranks_ok(ran.ok());
  if (rank == 0 && well) {
    (void)bench::print_out(fmt::format("{} units, {} of them had results, {} failed: {}\n", all,
                                       all - shared->left.size(), failed_units, arguments.folder))
        .ok();
  }
  if (!well) return bad_input;
  return failed_units == 0 ? 0 : units_failed;
}

int run(const std::vector<std::string>& arguments) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  sweep_arguments parsed;
  const bool is_sweep = !arguments.empty() && arguments.front() == "sweep";
  auto text = is_sweep
                  ? parse_sweep_arguments("gpumem_bench_mpi sweep", {arguments.begin() + 1, arguments.end()}, parsed)
                  : status{errc::bad_setting, "expected gpumem_bench_mpi sweep MANIFEST -o FOLDER"};
  if (text && !parsed.shard.empty())
    text = status{errc::bad_setting, "--shard: not supported under MPI, whose ranks share all units"};
  if (!text) return rank == 0 ? complain(text.why(), bad_input) : bad_input;
  if (*text) return rank != 0 || bench::print_out(**text).ok() ? 0 : bad_input;
  return run_ranks(parsed, rank);
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return bad_input;
  if (provided < MPI_THREAD_FUNNELED) {
    print_error("gpumem_bench_mpi: this MPI does not support threads; expected MPI_THREAD_FUNNELED\n");
    MPI_Abort(MPI_COMM_WORLD, bad_input);
  }
  int exit_status = bad_input;
  try {
    exit_status = run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    print_error("gpumem_bench_mpi: {}\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, bad_input);
  }
  MPI_Finalize();
  return exit_status;
}
