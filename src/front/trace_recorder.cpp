#include "trace_recorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <exception>
#include <utility>

#include "log.hpp"
#include "text.hpp"
#include "thread_number.hpp"
#include "trace_row.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

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
    recorder->write(trace_header);
  }
  return recorder;
}

void trace_recorder::refused(const oom_report& why, stream_ref stream) noexcept try {
  write_row("allocate failure", refusing_pool(why.policy, reachable_bytes(why)),
            std::min(why.requested_bytes, most_recorded_bytes), stream);
} catch (const std::exception& e) {
  const mutex_lock lock{mutex_};
  if (failed_.ok()) fail(e.what());
}

template <typename Pointer>
void trace_recorder::write_row(std::string_view action, const Pointer& pointer, std::uint64_t requested_bytes,
                               stream_ref stream) noexcept {
  if (!own_.is_of_this_process()) return;  // before the lock, which a thread of the parent may have held
  const std::uint32_t thread = thread_number();
  const mutex_lock lock{mutex_};
  if (!failed_.ok()) return;
  try {
    const auto since = std::chrono::steady_clock::now() - opened_;  // under the lock, so that times never decrease
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(since).count();
    fmt::memory_buffer text;
    append_trace_row(text, thread, static_cast<std::uint64_t>(us), action, pointer, requested_bytes,
                     stream_number(stream));
    write({text.data(), text.size()});
  } catch (const std::exception& e) {
    fail(e.what());
  }
}

/// The stream's number: 0 for the default stream, others in the order of their first appearance.
std::uint32_t trace_recorder::stream_number(stream_ref stream) {
  if (stream.handle == nullptr) return 0;
  return streams_.try_emplace(stream.handle, static_cast<std::uint32_t>(streams_.size() + 1)).first->second;
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
