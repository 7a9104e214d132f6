// The file has one line of fixed length for each process, which the process rewrites each time: however the process
// ends, the line says how often it ran out of memory and why the first time.
#include "oom_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <exception>

#include "checked_mutex.hpp"
#include "device_registry.hpp"
#include "driver_file.hpp"
#include "gpumem/gpumem.h"
#include "gpumem/settings.hpp"
#include "log.hpp"
#include "process_files.hpp"
#include "process_settings.hpp"
#include "text.hpp"

namespace gpumem::preload {
namespace {

constexpr std::size_t line_bytes = 512;  // with its newline; short enough for a single write()
constexpr std::chrono::seconds between_lines{1};

struct notes {
  checked_mutex mutex;
  std::uint64_t count GPUMEM_GUARDED_BY(mutex) = 0;
  std::uint64_t unsaid GPUMEM_GUARDED_BY(mutex) = 0;
  std::chrono::steady_clock::time_point latest GPUMEM_GUARDED_BY(mutex){};
  std::string first GPUMEM_GUARDED_BY(mutex);
  int process GPUMEM_GUARDED_BY(mutex) = 0;
  off_t place GPUMEM_GUARDED_BY(mutex) = -1;  ///< offset of this process's line in the file
};
notes& all_notes() {
  static auto* const only = new notes;
  return *only;
}

void write_line(notes& notes, const std::string& path) GPUMEM_REQUIRES(notes.mutex) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return;
  if (notes.place < 0) {  // append; all lines have the same length
    struct flock all {};
    all.l_type = F_WRLCK;
    all.l_whence = SEEK_SET;
    static_cast<void>(::fcntl(file, F_OFD_SETLKW, &all));
    notes.place = ::lseek(file, 0, SEEK_END);
  }
  std::string line =
      fmt::format("{} {} {}: {}", notes.count, ::getpid(), command_of(static_cast<unsigned>(::getpid())), notes.first);
  line.resize(line_bytes - 1, ' ');
  line += '\n';
  static_cast<void>(::pwrite(file, line.data(), line.size(), notes.place));
  ::close(file);
}

std::string beside_gpumem(const served_context& device) {
  if (!device.whole_process || !device.account.active()) return "";
  return fmt::format(
      "; GPUMEM_LIMIT={} is on the whole process, of which {} are taken or kept for what is not gpumem's",
      format_bytes(device.limit_bytes), format_bytes(device.account.beside_bytes()));
}

void note(const std::string& why) {
  const settings& options = settings_of_process().options;
  notes& n = all_notes();
  std::string line;
  {
    const mutex_lock lock{n.mutex};
    if (n.process != ::getpid()) {  // a forked child counts its own
      n.process = ::getpid();
      n.count = 0;
      n.unsaid = 0;
      n.place = -1;
    }
    if (++n.count == 1) n.first = printable(why, 400);
    if (!options.oom_file_path.empty()) write_line(n, options.oom_file_path);
    const auto current_time = std::chrono::steady_clock::now();
    if (n.count > 1 && current_time - n.latest < between_lines) {
      ++n.unsaid;
    } else {
      n.latest = current_time;
      line = why;
      if (n.unsaid != 0) line += fmt::format(" ({} more since the last line)", n.unsaid);
      n.unsaid = 0;
    }
  }
  if (options.oom_log && !line.empty()) log_line(line);
}

/// Calls the driver's gpumem_refusal_callback, if it has one.
void report_refusal(int ordinal, const refused_request& request, gpumem_refusal_cause cause, const std::string& text) {
  const auto callback = reinterpret_cast<decltype(&gpumem_refusal_callback)>(driver_symbol("gpumem_refusal_callback"));
  if (callback == nullptr) return;
  const gpumem_refusal refusal{.struct_bytes = sizeof(gpumem_refusal),
                               .function = request.function,
                               .text = text.c_str(),
                               .requested_bytes = request.bytes,
                               .physical_device = ordinal,
                               .cause = cause};
  callback(&refusal);
}

}  // namespace

void note_out_of_memory(const served_context& device, const refused_request& request, const std::string& why,
                        const oom_report& report) noexcept {
  try {
    const std::string outside = beside_gpumem(device);
    note(why + outside);
    if (refused_by_driver()) return;
    report_refusal(device.ordinal, request, static_cast<gpumem_refusal_cause>(report.cause),
                   report.explanation() + outside);
  } catch (const std::exception&) {  // no host memory for the message
  }
}

void note_refused_call(int ordinal, std::uint64_t bytes, bool by_account) noexcept {
  try {
    const served_context* const d =
        ordinal >= 0 && ordinal < most_devices ? open_devices[ordinal].load(std::memory_order_acquire) : nullptr;
    std::string cause = "which has none left; gpumem holds nothing idle that it could give back";
    if (by_account && d != nullptr && bytes > d->limit_bytes) {
      cause = fmt::format("more than the limit {} in all; ask for less, or raise GPUMEM_LIMIT",
                          format_bytes(d->limit_bytes));
    } else if (by_account) {
      cause = "more than the limit leaves; free memory or raise GPUMEM_LIMIT";
    }
    const std::string detail = by_account && d != nullptr ? beside_gpumem(*d) : "";
    note(fmt::format("out of memory: {} asked of the driver beside gpumem, {}{}", format_bytes(bytes), cause, detail));
    if (by_account) report_refusal(ordinal, {"a call beside gpumem", bytes}, GPUMEM_REFUSED_LIMIT, cause + detail);
  } catch (const std::exception&) {  // no host memory for the message
  }
}

}  // namespace gpumem::preload
