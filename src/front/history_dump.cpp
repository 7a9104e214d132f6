#include "history_dump.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <unordered_map>

#include "log.hpp"
#include "logical_devices.hpp"
#include "pooled_allocator.hpp"
#include "text.hpp"
#include "trace_row.hpp"
#include "without_exceptions.hpp"

namespace gpumem {
namespace {

constexpr std::size_t rows_together = 32'768;  // bytes per write; recording_file takes at most 60,000

/// Writes rows in pieces, and numbers streams as a recording does.
class trace_writer {
 public:
  explicit trace_writer(recording_file& file) : file_{file} {}

  template <typename Pointer>
  status add(std::uint32_t thread, std::uint64_t time_us, std::string_view action, const Pointer& pointer,
             std::uint64_t bytes, stream_ref stream) {
    append_trace_row(text_, thread, time_us, action, pointer, bytes, number_of(stream));
    ++rows_;
    return text_.size() < rows_together ? status{} : flush();
  }
  status add_header() {
    text_.append(trace_header);
    return {};
  }
  status flush() {
    status written = text_.size() == 0 ? status{} : file_.write({text_.data(), text_.size()});
    text_.clear();
    return written;
  }
  [[nodiscard]] std::uint64_t rows() const noexcept { return rows_; }

 private:
  std::uint32_t number_of(stream_ref stream) {
    if (stream.handle == nullptr) return 0;
    return streams_.try_emplace(stream.handle, static_cast<std::uint32_t>(streams_.size() + 1)).first->second;
  }
  recording_file& file_;
  fmt::memory_buffer text_;
  std::unordered_map<void*, std::uint32_t> streams_;
  std::uint64_t rows_ = 0;
};

/// Returns the number of rows written.
result<std::uint64_t> write_history(recording_file& file, const pool_history& history, std::string_view policy) {
  trace_writer rows{file};
  status written = rows.add_header();
  for (const history_block& each : history.live_before) {
    written = rows.add(0, 0, "allocate", each.pointer, each.requested_bytes, each.stream);
    if (!written) return written;
  }
  const std::uint64_t begin_ns = history.events.empty() ? 0 : history.events.front().time_ns;
  for (const history_event& each : history.events) {
    const std::uint64_t time_us = (each.time_ns - begin_ns) / 1000;
    if (each.kind == event_kind::refused) {
      written = rows.add(each.thread, time_us, "allocate failure", refusing_pool(policy, each.pointer),
                         each.requested_bytes, each.stream);
    } else {
      const std::string_view action = each.kind == event_kind::allocated ? "allocate" : "free";
      written = rows.add(each.thread, time_us, action, each.pointer, each.requested_bytes, each.stream);
    }
    if (!written) return written;
  }
  if (written = rows.flush(); !written) return written;
  return rows.rows();
}

status write_events(recording_file& file, const pool& dumped) {
  const std::vector<flight_event> events = dumped.flight();
  const std::uint64_t now_ns = flight_time_ns();
  std::string text = fmt::format("pool {} ({}): {} events\n", printable(dumped.config().name),
                                 printable(dumped.config().policy_name), events.size());
  for (const flight_event& each : events) text += to_string(each, now_ns) + "\n";
  return file.write(text);
}

}  // namespace

status write_dump(std::span<pooled_allocator* const> allocators, std::string_view contents, int descriptor) {
  struct stat found {};
  if (::fstat(descriptor, &found) != 0 || !S_ISREG(found.st_mode)) {  // a write to a pipe could block this thread
    return {errc::invalid_argument, "the file of the dump is no regular file"};
  }
  if (contents != "trace" && contents != "events") {
    return {errc::invalid_argument, fmt::format("dump {}: expected trace or events", printable(contents))};
  }
  recording_file file;
  file.open(descriptor, false);
  bool any = false;
  for (const pooled_allocator* const memory : allocators) {
    const status done = memory->for_each_pool([&](const pool& each) -> status {
      if (contents == "events") {
        any = true;
        return write_events(file, each);
      }
      if (each.config().history_events == 0) return {};
      any = true;
      const result<std::uint64_t> rows = write_history(file, each.history(), each.config().policy_name);
      return rows ? status{} : rows.why();
    });
    if (!done) return {done.code(), "the dump cannot be written: " + done.message()};
  }
  if (any) return {};
  if (allocators.empty()) return {errc::unsupported, "has allocated nothing yet; try again when it has"};
  return {errc::unsupported, "keeps no history; start it with GPUMEM_HISTORY=100000, or take --format events"};
}

result<std::unique_ptr<history_file>> history_file::open(const settings& options, int logical) {
  if (options.history_events == 0 || options.trace_path.empty()) return std::unique_ptr<history_file>{};
  const std::string path = path_of_pool(options.trace_path, logical);
  result<written_file> own = written_file::open(path);
  if (!own) {
    return status{errc::bad_setting, fmt::format("GPUMEM_TRACE={}: cannot be opened: {}; expected a file to write",
                                                 printable(path, PATH_MAX), own.why().message())};
  }
  recording_file file;  // writes the header now, so that the file is a valid recording before the first dump
  file.open(own->descriptor(), path.ends_with(".gz"));
  status begun = file.write(trace_header);
  if (begun) begun = file.flush();
  if (!begun) {
    return status{errc::bad_setting,
                  fmt::format("GPUMEM_TRACE={}: cannot be written: {}", printable(path, PATH_MAX), begun.message())};
  }
  return std::unique_ptr<history_file>{new history_file{*std::move(own)}};
}

void history_file::refused(const pool& dumped) noexcept {
  if (!own_.is_of_this_process()) return;  // before the lock, which a thread of the parent may have held
  const status done = without_exceptions([&]() -> status {
    const mutex_lock lock{mutex_};
    const std::uint64_t new_events = dumped.noted_events() - written_at_;
    if (written_rows_ != 0 && new_events < written_rows_ / 10) return {};
    const bool is_first = written_rows_ == 0;
    if (status written = replace(dumped); !written) return written;
    if (is_first) {
      log_line(fmt::format("pool {} ran out of memory: the latest events are in {}; to do: gpumem why {}",
                           dumped.config().name, printable(path(), PATH_MAX), printable(path(), PATH_MAX)));
    }
    return {};
  });
  if (!done) log_if_possible([&done] { return done.message(); });
}

status history_file::write(const pool& dumped) {
  const mutex_lock lock{mutex_};
  return replace(dumped);
}

status history_file::replace(const pool& dumped) {
  const pool_history history = dumped.history();
  const auto failed = [&](std::string_view why) {
    return status{errc::bad_setting,
                  fmt::format("GPUMEM_TRACE={}: the history cannot be written: {}", printable(path(), PATH_MAX), why)};
  };
  struct stat found {};
  const bool is_regular = ::fstat(own_.descriptor(), &found) == 0 && S_ISREG(found.st_mode);
  if (is_regular && ::ftruncate(own_.descriptor(), 0) != 0) return failed(std::strerror(errno));
  recording_file file;
  file.open(own_.descriptor(), path().ends_with(".gz"));
  const result<std::uint64_t> rows = write_history(file, history, dumped.config().policy_name);
  if (!rows) return failed(rows.why().message());
  if (const status flushed = file.flush(); !flushed) return failed(flushed.message());
  written_rows_ = *rows;
  written_at_ = history.noted;
  return {};
}

}  // namespace gpumem
