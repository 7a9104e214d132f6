#include "run_recorder.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>

#include "driver_state.hpp"
#include "job_rank.hpp"
#include "python_line.hpp"
#include "run_record.hpp"

namespace gpumem::simcuda {
namespace {

process_record unseen;  // used if no report is requested
process_record* record = &unseen;

std::uint64_t now_ns(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(t.tv_nsec);
}
std::uint64_t since_begin_ns() {
  const std::uint64_t clock_ns = now_ns(CLOCK_REALTIME);
  return clock_ns > record->began_ns ? clock_ns - record->began_ns : 0;
}

card_record* card_of(const gpu& device) {
  return device.ordinal < report_cards ? &record->card[device.ordinal] : nullptr;
}

void note_used(const gpu& device, card_record& card) {
  const std::uint64_t used = own_bytes(device);
  if (used <= card.peak_used_bytes) return;
  card.peak_used_bytes = used;
  card.peak_used_ns = since_begin_ns();
}

/// Creates the file for the current program: a process that executes another program keeps the former file. -1 on
/// failure.
int make_record_file(const std::string& folder) {
  const std::string start = folder + "/" + std::to_string(::getpid());
  int file = -1;
  for (int n = 0; file < 0; ++n) {
    std::string path = start;
    if (n != 0) path.append(".").append(std::to_string(n));
    path.append(".simcuda");
    file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 && errno != EEXIST) break;
  }
  return file;
}

}  // namespace

void open_report() {
  if (record->layout == report_layout && record->cards != 0) return;
  const char* const folder = std::getenv("SIMCUDA_REPORT");
  if (folder != nullptr && *folder != '\0' && record == &unseen) {
    const int file = make_record_file(folder);
    if (file >= 0 && ::ftruncate(file, sizeof(process_record)) == 0) {
      void* const mapping = ::mmap(nullptr, sizeof(process_record), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (mapping != MAP_FAILED) record = static_cast<process_record*>(mapping);
    }
    if (file >= 0) ::close(file);
  }
  *record = {};
  const driver_state& w = the_driver_state();
  record->pid = static_cast<std::uint64_t>(::getpid());
  record->began_ns = now_ns(CLOCK_REALTIME);
  record->cards = static_cast<std::int32_t>(std::min<std::size_t>(w.gpus.size(), report_cards));
  for (int i = 0; i < record->cards; ++i) {
    record->card[i].bytes = w.config.bytes;
    record->card[i].number = w.gpus[static_cast<std::size_t>(i)]->card;
  }
  record->rank = -1;
  if (const std::optional<job_rank>& launched = this_rank(); launched) {
    const char* const ranks = std::getenv("WORLD_SIZE");
    record->rank = static_cast<std::int32_t>(launched->rank);
    record->ranks = ranks == nullptr ? 0 : std::atoi(ranks);
  }
  static const int watched = ::on_exit([](int status, void*) { note_exit(status); }, nullptr);
  static_cast<void>(watched);
  record->layout = report_layout;
}

void note_rank(int rank, int ranks) {
  if (ranks < 2) return;
  record->is_joined = 1;
  if (ranks <= record->ranks) return;
  record->rank = rank;
  record->ranks = ranks;
}

void note_lost_rank() { record->lost_rank = 1; }

void note_exit(int status) {
  if (record->ended_ns != 0 || record->pid != static_cast<std::uint64_t>(::getpid())) return;
  record->exit_status = status & 0xff;
  record->ended_ns = now_ns(CLOCK_REALTIME);
}

void note_taken(gpu& device, std::uint64_t bytes) {
  card_record* const card = card_of(device);
  if (card == nullptr) return;
  card->live_bytes += bytes;
  if (card->live_bytes > card->peak_live_bytes) {
    card->peak_live_bytes = card->live_bytes;
    card->peak_live_ns = since_begin_ns();
  }
  note_used(device, *card);
}

void note_given_back(gpu& device, std::uint64_t bytes) {
  if (card_record* const card = card_of(device); card != nullptr) card->live_bytes -= std::min(bytes, card->live_bytes);
}

void note_beyond(std::uint64_t bytes) { record->beyond_bytes += bytes; }

void note_charge(gpu& device, charge kind, std::uint64_t bytes) {
  card_record* const card = card_of(device);
  if (card == nullptr) return;
  (kind == charge::context  ? card->context_bytes
   : kind == charge::module ? card->modules_bytes
                            : card->libraries_bytes) += bytes;
  note_used(device, *card);
}

void note_refused(const gpu& device, std::string_view function, std::uint64_t bytes, std::string_view why) {
  const std::uint64_t index = record->refusals++;
  if (index >= report_refusals) return;
  refusal_record& entry = record->refusal[index];
  entry = {};
  entry.at_ns = since_begin_ns();
  entry.requested_bytes = bytes;
  if (the_driver_state().shared != nullptr) entry.others_bytes = the_driver_state().shared->held_by_others(device.card);
  entry.used_bytes = own_bytes(device) + entry.others_bytes;
  entry.card = device.ordinal;
  function.copy(entry.function, sizeof entry.function - 1);
  why.copy(entry.why, sizeof entry.why - 1);
}

void note_unsupported(std::string_view function) {
  if (record->unsupported++ == 0) function.copy(record->first_unsupported, sizeof record->first_unsupported - 1);
}

namespace {

template <std::size_t Size>
void write(char (&buffer)[Size], std::string_view text) {
  buffer[text.copy(buffer, Size - 1)] = '\0';
}

/// Finding a line costs a signal, so this samples all of the first reads and then ever fewer.
void note_place_of_read() {
  constexpr std::uint64_t always_looked = 256;
  const std::uint64_t reads = record->untrue_values_read;
  if (reads > always_looked && !std::has_single_bit(reads)) return;
  const std::string line = python_line();
  if (line.empty()) return;
  for (read_record& each : record->read) {
    if (each.times != 0 && line.compare(0, sizeof each.place - 1, each.place) != 0) continue;
    write(each.place, line);
    ++each.times;
    return;
  }
}

}  // namespace

void note_host_read(std::uint64_t bytes, bool is_true) {
  ++record->host_values_read;
  record->host_bytes_read += bytes;
  if (is_true) return;
  ++record->untrue_values_read;
  note_place_of_read();
}

void note_clamped(std::uint64_t indices) { record->clamped_indices += indices; }

void note_unknown_kernel(std::string_view name) {
  if (record->unknown_kernels++ == 0) write(record->unknown_kernel, name);
}

void note_kernel() { ++record->kernels; }

void note_use() { ++record->uses_seen; }

void note_unseen(std::string_view why) {
  if (record->unseen[0] == '\0') why.copy(record->unseen, sizeof record->unseen - 1);
}

void note_undefined(std::string_view description) {
  if (record->undefined_uses++ == 0) description.copy(record->undefined, sizeof record->undefined - 1);
}

namespace {

/// Returns the program's handle of the stream; 0: a default stream.
std::uint64_t handle_of(stream_ref stream) {
  for (const auto& each : the_driver_state().streams) {
    if (each->context != nullptr && each->sim.handle == stream.handle)
      return reinterpret_cast<std::uintptr_t>(each.get());
  }
  return 0;
}

}  // namespace

void note_hazards(bool place) {
  for (const auto& g : the_driver_state().gpus) {
    const std::uint64_t found = g->sim->hazard_count();
    if (found == g->hazards_noted) continue;
    const std::vector<hazard> kept = g->sim->hazards();
    const std::string line = place ? python_line() : std::string{};
    for (; g->hazards_noted < found; ++g->hazards_noted) {
      const std::uint64_t index = record->hazards++;
      if (index >= report_hazards || g->hazards_noted >= kept.size()) continue;
      const hazard& each = kept[g->hazards_noted];
      hazard_record& entry = record->hazard[index];
      entry = {.at_ns = since_begin_ns(),
               .address = each.at,
               .bytes = each.bytes,
               .user = handle_of(each.user),
               .receiver = handle_of(each.receiver),
               .card = g->ordinal};
      write(entry.kind, to_string(each.kind));
      write(entry.function, front.calls != nullptr ? front.calls : "");
      write(entry.place, line);
    }
  }
}

namespace {
std::uint64_t kept_hazards() { return std::min<std::uint64_t>(record->hazards, report_hazards); }
}  // namespace

void place_hazards(std::string_view place) {
  for (std::uint64_t i = kept_hazards(); i-- > 0 && record->hazard[i].place[0] == '\0';) {
    write(record->hazard[i].place, place);
  }
}

const hazard_record* noted_hazard(std::uint64_t index) {
  return index < kept_hazards() ? &record->hazard[index] : nullptr;
}

void note_foreign_runtime(const void* caller) {
  open_report();
  Dl_info where{};
  record->foreign_runtime = 1;
  if (::dladdr(caller, &where) == 0 || where.dli_fname == nullptr) return;
  std::string_view{where.dli_fname}.copy(record->runtime, sizeof record->runtime - 1);
}

}  // namespace gpumem::simcuda
