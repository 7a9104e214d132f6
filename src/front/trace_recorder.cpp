#include "trace_recorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <exception>
#include <iterator>
#include <type_traits>
#include <utility>

#include "log.hpp"
#include "text.hpp"
#include "without_exceptions.hpp"

namespace gpumem {
namespace {

/// The largest size that the readers of recordings take; no device has as much.
constexpr std::uint64_t most_recorded_bytes = std::uint64_t{1} << 48;

/// The thread's number, from 1, in the order of the threads' first records.
std::uint32_t thread_number() noexcept {
  static std::atomic<std::uint32_t> threads{0};
  thread_local const std::uint32_t number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

}  // namespace

result<std::unique_ptr<trace_recorder>> trace_recorder::open(const std::string& path) {
  result<written_file> own = written_file::open(path);
  if (!own) {
    return status{errc::bad_setting, fmt::format("GPUMEM_TRACE={}: cannot be opened: {}; expected a file to write",
                                                 printable(path, PATH_MAX), own.why().message())};
  }
  const int descriptor = own->descriptor();
  std::unique_ptr<trace_recorder> recorder{new trace_recorder{*std::move(own)}};
  {
    const mutex_lock lock{recorder->mutex_};
    recorder->file_.open(descriptor, path.ends_with(".gz"));
    recorder->write("Thread,Time,Action,Pointer,Size,Stream\n");
  }
  return recorder;
}

void trace_recorder::refused(const oom_report& why, stream_ref stream) noexcept try {
  // The most that the pool could have had: its memory and the rest of its limit or of the card.
  const statistics& pool = why.pool_statistics;
  const std::uint64_t limit = std::max(pool.limit_bytes, pool.reserved_bytes);
  const std::uint64_t within = pool.reserved_bytes + std::min(limit - pool.reserved_bytes, why.device_free_bytes);
  const bool is_field = why.policy.find_first_of(",\n") == std::string::npos;
  write_row("allocate failure", is_field ? fmt::format("{}@{}", why.policy, within) : std::string{"(nil)"},
            std::min(why.requested_bytes, most_recorded_bytes), stream);
} catch (const std::exception& e) {
  const mutex_lock lock{mutex_};
  if (failed_.ok()) fail(e.what());
}

template <typename Pointer>
void trace_recorder::write_row(std::string_view action, const Pointer& pointer, std::uint64_t requested_bytes,
                               stream_ref stream) noexcept {
  const std::uint32_t thread = thread_number();
  const mutex_lock lock{mutex_};
  if (!failed_.ok()) return;
  try {
    const auto since = std::chrono::steady_clock::now() - opened_;  // under the lock, so that times never decrease
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(since).count();
    const auto s_whole = us / 1'000'000;
    constexpr std::string_view form = std::is_integral_v<Pointer> ? "{},{:02}:{:02}:{:02}:{:06},{},{:#x},{},{}\n"
                                                                  : "{},{:02}:{:02}:{:02}:{:06},{},{},{},{}\n";
    fmt::memory_buffer text;
    fmt::format_to(std::back_inserter(text), form, thread, s_whole / 3600, s_whole / 60 % 60, s_whole % 60,
                   us % 1'000'000, action, pointer, requested_bytes, stream_number(stream));
    write({text.data(), text.size()});
  } catch (const std::exception& e) {
    fail(e.what());
  }
}

/// The stream's number: 0 for the default stream, others in the order of their first appearance.
std::uint32_t trace_recorder::stream_number(stream_ref s) {
  if (s.handle == nullptr) return 0;
  return streams_.try_emplace(s.handle, static_cast<std::uint32_t>(streams_.size() + 1)).first->second;
}

void trace_recorder::write(std::string_view text) {
  if (const status written = file_.write(text); !written) fail(written.message());
}

void trace_recorder::fail(std::string_view reason) noexcept {
  failed_ = without_exceptions([&]() -> status {
    return {errc::bad_setting, fmt::format("GPUMEM_TRACE={}: cannot be written: {}; recording has stopped",
                                           printable(own_.path(), PATH_MAX), reason)};
  });
  const status why = failed_;
  log_if_possible([&why] { return why.message(); });
}

/// Ends the gzip member; later rows begin another one, and readers read them as one stream.
status trace_recorder::flush() {
  const mutex_lock lock{mutex_};
  if (!failed_.ok()) return failed_;
  if (const status flushed = file_.flush(); !flushed) fail(flushed.message());
  return failed_;
}

}  // namespace gpumem
