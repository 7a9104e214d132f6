// Each process writes its record to a file in the run's own folder while it runs, so a program that crashes or is
// killed leaves its figures too.
#include "simulated_run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "assign_or_return.hpp"
#include "busy_wait_detector.hpp"
#include "cards.hpp"
#include "command_file.hpp"
#include "exec_words.hpp"
#include "host_memory.hpp"
#include "kept_status.hpp"
#include "print_error.hpp"
#include "quiescence_detector.hpp"
#include "rank_watch.hpp"
#include "run_guard.hpp"
#include "run_processes.hpp"
#include "shared_cards.hpp"
#include "simulated_cuda.hpp"
#include "temporary_folder.hpp"
#include "text.hpp"
#include "units.hpp"
#include "written_file.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;

pid_t passed_on_to = 0;
volatile sig_atomic_t was_passed_on = 0;
// The terminal's signals reach the command too, because both processes are in its foreground group.
void pass_on(int signal, siginfo_t* info, void* /*context*/) {
  const int saved = errno;
  const bool sent_by_a_process = info != nullptr && info->si_code <= 0;
  if (passed_on_to > 0 && sent_by_a_process) {
    was_passed_on = 1;
    ::kill(passed_on_to, signal);
  }
  errno = saved;
}

/// The value of LD_PRELOAD: the policy's library, the simulated libraries, and the previous value.
result<std::string> preload_list(const std::string& driver_folder, const std::string& first) {
  std::string list = first;
  std::vector<std::string> files = libraries_in(driver_folder);
  if (files.empty()) return status{errc::unsupported, fmt::format("{}: no libcuda.so.1 there", driver_folder)};
  // CUDA 12's come after CUDA 13's, so that CUDA 13's serve lookups of a function without a version.
  for (std::string& file : libraries_in(driver_folder + "/cuda12")) files.push_back(std::move(file));
  for (const std::string& file : files) list += (list.empty() ? "" : ":") + file;
  if (list.find_first_of(" \t") != std::string::npos) {
    return status{errc::unsupported, fmt::format("{}: LD_PRELOAD cannot hold a path with a space", driver_folder)};
  }
  const char* const before = std::getenv("LD_PRELOAD");
  if (before != nullptr && *before != '\0') list += fmt::format(":{}", before);
  return list;
}

std::string in_front_of(const std::string& folder, const char* variable) {
  const char* const before = std::getenv(variable);
  return before != nullptr && *before != '\0' ? fmt::format("{}:{}", folder, before) : folder;
}

/// The command's environment, set in this process between fork and exec.
void set_variables(const simulated_setup& setup, const std::string& driver_folder, const std::string& preload,
                   const std::string& records) {
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  set("SIMCUDA_CARD", setup.card);
  if (setup.card_bytes != 0) {
    set("SIMCUDA_BYTES", fmt::format("{}", setup.card_bytes));
  } else {
    ::unsetenv("SIMCUDA_BYTES");
  }
  set("SIMCUDA_DEVICES", fmt::format("{}", setup.cards));
  set("SIMCUDA_CONTEXT_BYTES", fmt::format("{}", setup.context_bytes));
  set("SIMCUDA_LIBRARY_BYTES", fmt::format("{}", setup.module_bytes));
  set("SIMCUDA_MODULE_BYTES", fmt::format("{}", setup.module_bytes));
  for (const char* library : {"SIMCUDA_CUBLAS_BYTES", "SIMCUDA_CUDNN_BYTES", "SIMCUDA_NCCL_BYTES"}) {
    set(library, fmt::format("{}", setup.library_bytes));
  }
  if (!setup.shared.empty()) {
    set("SIMCUDA_SHARED", setup.shared);
  } else if (const char* const given = std::getenv("SIMCUDA_SHARED"); given == nullptr || *given == '/') {
    set("SIMCUDA_SHARED", records + "/cards");  // a path comes from an outer run: replace it
  }
  if (setup.one_rank) set("SIMCUDA_ONE_RANK", "1");
  set("SIMCUDA_REPORT", records);
  set("SIMCUDA_STRICT", setup.strict ? "abort" : "report");
  // The user's own values of these two take precedence (of the second only without the referee).
  ::setenv("SIMCUDA_HOST_MEMORY", "lazy", 0);
  ::setenv("SIMCUDA_REFEREE", setup.referee ? "1" : "0", setup.referee ? 1 : 0);
  set("SIMCUDA_WATCH", setup.referee ? "1" : "0");
  set("SIMCUDA_DRIVER", driver_folder + "/libcuda.so.1");
  const std::string links = records + "/links";
  link_plain_names(driver_folder, links);
  link_plain_names(driver_folder + "/cuda12", links);
  set("LD_LIBRARY_PATH", in_front_of(driver_folder + ":" + driver_folder + "/cuda12:" + links, "LD_LIBRARY_PATH"));
  set("PYTHONPATH", in_front_of(driver_folder + "/python", "PYTHONPATH"));
  set("SIMCUDA_TORCH_HISTORY", setup.history);
  for (const auto& [name, value] : setup.variables) set(name.c_str(), value);
  set("LD_PRELOAD", preload);
  begin_job();
}

/// Programs iterate over sets and maps by address or hash, and free tensors in that order. Without randomized addresses
/// and hashes, each run of a program makes the same requests. Some containers forbid the first.
void make_reproducible() {
  constexpr unsigned long query = 0xffffffff;
  const int persona = ::personality(query);
  if (persona != -1) static_cast<void>(::personality(static_cast<unsigned long>(persona) | ADDR_NO_RANDOMIZE));
  ::setenv("PYTHONHASHSEED", "0", 0);
}

/// For a program that runs again: it prints nothing, and has no input, which the run before has read.
void detach() {
  const int nowhere = ::open("/dev/null", O_RDWR);
  if (nowhere < 0) return;
  for (const int each : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nowhere, each);
  if (nowhere > STDERR_FILENO) ::close(nowhere);
}

int status_of(int waited) { return WIFEXITED(waited) ? WEXITSTATUS(waited) : 128 + WTERMSIG(waited); }

std::vector<simulated_process> read_records(const std::string& folder) {
  std::vector<simulated_process> processes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator{folder, error}) {
    if (entry.path().extension() != ".simcuda") continue;
    simulated_process each;
    std::ifstream file{entry.path(), std::ios::binary};
    if (!file.read(reinterpret_cast<char*>(&each.record), sizeof each.record)) continue;
    if (each.record.layout != simcuda::report_layout) continue;
    each.runtime.assign(each.record.runtime, ::strnlen(each.record.runtime, sizeof each.record.runtime));
    std::ifstream figures{fs::path{entry.path()}.replace_extension(".torch.json")};
    if (figures) each.torch = nlohmann::json::parse(figures, nullptr, false);
    if (each.torch.is_discarded()) each.torch = nullptr;
    processes.push_back(std::move(each));
  }
  std::sort(processes.begin(), processes.end(),
            [](const auto& lhs, const auto& rhs) { return lhs.record.began_ns < rhs.record.began_ns; });
  return processes;
}

/// Signals that are ignored, as under nohup, stay ignored.
void handle_signals(pid_t child) {
  passed_on_to = child;
  was_passed_on = 0;
  for (const int each : {SIGTERM, SIGHUP, SIGINT, SIGQUIT}) {
    struct sigaction now {};
    if (::sigaction(each, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_IGN)
      continue;
    struct sigaction passing {};
    passing.sa_sigaction = pass_on;
    passing.sa_flags = SA_SIGINFO;
    ::sigaction(each, &passing, nullptr);
  }
}

/// Warns once if the program seems to wait for a value that a kernel would write. Returns true if the program must end
/// for it. That happens only if the user set --settle, because a program may also just compute on the host.
bool ends_for_spinning(double spun_s, double settle_s, bool& told) {
  constexpr double tell_s = 60;
  const bool end = settle_s > 0 && settle_s != default_settle_s && spun_s >= settle_s;
  if (!end && (told || spun_s < tell_s)) return false;
  told = true;
  print_error(
      "gpumem: {}for {:.0f} s the program has only used the processor, after it launched kernels, and called "
      "nothing. If it waits for a value that a kernel writes into the host's memory, that never comes: kernels "
      "do nothing. {}\n",
      end ? "ended: " : "", spun_s, end ? "--settle 0 lets it run on" : "--settle 60s ends such a program");
  return end;
}

std::string host_is_short(const host_memory& host) {
  return fmt::format(
      "ended: this machine has {} of {} of memory left, and the program has taken {}; expected a machine with "
      "more memory, or a program that keeps less on the host",
      format_bytes(host.available_bytes()), format_bytes(host.total_bytes()), format_bytes(host.peak_bytes()));
}

/// Waits for the command and passes signals on to it. Ends the run if its figures have settled, if it waits in a loop,
/// if a rank has failed, or if the host runs out of memory. After a passed signal also ends the processes that the
/// command left behind: a killed shell leaves its command running.
void wait_for(pid_t pid, const std::string& records, double settle_s, simulated_outcome& outcome) {
  handle_signals(pid);
  run_child_process child{pid};
  quiescence_detector figures{settle_s};
  busy_wait_detector loops;
  host_memory host;
  unsigned looks = 0;
  bool told = false;
  rank_watch ranks{records, [&] { return read_records(records); }};
  bool interrupted = false;
  while (!child.ended_within(std::chrono::milliseconds{250})) {
    const std::vector<simulated_process> processes = read_records(records);
    host.look_at_host();
    if (looks++ % 4 == 0 || host.is_short()) host.look_at_run(pid);
    outcome.host_bytes = host.peak_bytes();
    if (host.is_short()) {
      outcome.stopped = host_is_short(host);
      interrupted = true;
      end_run(child, records);
      break;
    }
    const bool settled = figures.look(processes);
    const bool lost = ranks.look(processes);
    if (!settled && !lost && !ends_for_spinning(loops.look(processes), settle_s, told)) continue;
    if (settled) outcome.settled_reads = figures.reads();
    interrupted = !lost;
    end_run(child, records);
    break;
  }
  passed_on_to = 0;  // the pid may be reused
  outcome.exit_status = status_of(child.waited());
  // Ranks that ended because the run was ended or interrupted did not fail.
  if (!interrupted && was_passed_on == 0) {
    if (!ranks.is_lost()) static_cast<void>(ranks.look(read_records(records)));
    outcome.failed_ranks = ranks.failed();
  }
  if (!outcome.failed_ranks.empty() && (outcome.exit_status == 0 || ranks.is_lost())) {
    const int status = outcome.failed_ranks.front().exit_status;
    outcome.exit_status = status > 0 ? status : 128 + SIGKILL;
  }
  if (was_passed_on != 0 && outcome.exit_status != 0) end_left_behind(child, records);
}

}  // namespace

status check_context(const simulated_setup& setup, const std::string& context) {
  const std::uint64_t card = setup.card_bytes != 0 ? setup.card_bytes : simcuda::find_card(setup.card)->bytes();
  if (setup.context_bytes <= card) return {};
  return {errc::bad_setting, fmt::format("--context {}: larger than the card ({}); expected a smaller context, or a "
                                         "card with more memory",
                                         printable(context), format_bytes(card))};
}

result<simulated_outcome> run_simulated(const simulated_setup& setup) {
  const command_file command = find_command(setup.command.front());
  if (command.exit_status != 0) {
    simulated_outcome outcome;
    outcome.exit_status = command.exit_status;
    print_error("gpumem: {}\n", printable(command.why, 8192));
    return outcome;
  }
  if (!command.no_preload.empty()) {
    return status{errc::unsupported, fmt::format("{} {}: the simulated card cannot be preloaded into it", command.path,
                                                 command.no_preload)};
  }
  ASSIGN_OR_RETURN(const auto driver_folder, find_simulated_driver());
  if (const std::vector<std::string> missing = missing_files(driver_folder); !missing.empty()) {
    return status{errc::unsupported, fmt::format("{}: the simulated CUDA is incomplete, without {}: {}", driver_folder,
                                                 fmt::join(missing, ", "), how_to_complete())};
  }
  ASSIGN_OR_RETURN(const auto preload, preload_list(driver_folder, setup.preload));
  const temporary_folder records{"gpumem-simulate-"};
  if (records.path().empty()) return status{errc::unsupported, "cannot create a folder for records in TMPDIR"};

  std::vector<std::string> copies = setup.command;
  std::vector<char*> words = exec_words(copies);
  const auto begun = std::chrono::steady_clock::now();
  const run_guard guard{records.path()};
  const kept_status ends;
  const pid_t child = ::fork();
  if (child < 0) return status{errc::unsupported, fmt::format("fork: {}", std::strerror(errno))};
  if (child == 0) {
    ends.restore();
    if (setup.output_to_stderr) ::dup2(STDERR_FILENO, STDOUT_FILENO);
    set_variables(setup, driver_folder, preload, records.path());
    make_reproducible();
    if (setup.runs_again) detach();
    ::execvp(command.path.c_str(), words.data());
    print_error("gpumem: {}: cannot be run: {}\n", command.path, std::strerror(errno));
    ::_exit(errno == ENOENT ? not_found : not_executable);
  }
  guard.watch(child);
  simulated_outcome outcome;
  outcome.runtimes = libraries_in(driver_folder + "/cuda12").empty() ? "13" : "12 or 13";
  wait_for(child, records.path(), setup.settle_s, outcome);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  outcome.processes = read_records(records.path());
  std::stable_sort(outcome.processes.begin(), outcome.processes.end(),
                   [](const auto& first, const auto& second) { return first.record.rank < second.record.rank; });
  if (!setup.shared.empty()) simcuda::shared_cards::remove_unused(setup.shared);
  return outcome;
}

}  // namespace gpumem::cli
