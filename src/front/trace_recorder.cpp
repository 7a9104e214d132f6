/// Rows are formatted on the stack and buffered by zlib, which writes plain files through its transparent mode.
#include "trace_recorder.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "log.hpp"
#include "text.hpp"
#include "without_exceptions.hpp"

namespace gpumem {
namespace {

constexpr unsigned buffer_bytes = 1U << 18;
constexpr std::size_t longest_path = 4096;

/// The thread's number, from 1, in the order of the threads' first records.
std::uint32_t thread_number() noexcept {
  static std::atomic<std::uint32_t> threads{0};
  thread_local const std::uint32_t number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

}  // namespace

result<std::unique_ptr<trace_recorder>> trace_recorder::open(const std::string& path) {
  const auto refused = [&path](std::string_view why) {
    return status{errc::bad_setting, fmt::format("GPUMEM_TRACE={}: cannot be opened: {}; expected a file to write",
                                                 printable(path, longest_path), why)};
  };
  result<result_file> own = result_file::open(path);
  if (!own) return refused(own.why().message());
  owned_fd written{::fcntl(own->descriptor(), F_DUPFD_CLOEXEC, 0)};  // zlib closes it
  if (written.get() < 0) return refused(std::strerror(errno));
  // Closes the file if there is no host memory for the recorder that would own it.
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file{gzdopen(written.get(), path.ends_with(".gz") ? "wb" : "wbT"),
                                                  gzclose};
  if (!file) return refused(std::strerror(ENOMEM));
  static_cast<void>(written.release());
  (void)gzbuffer(file.get(), buffer_bytes);  // fails only after a write
  std::unique_ptr<trace_recorder> recorder{new trace_recorder{*std::move(own), file.get()}};
  (void)file.release();
  {
    const mutex_lock lock{recorder->mutex_};
    recorder->write("Thread,Time,Action,Pointer,Size,Stream\n");
  }
  return recorder;
}

trace_recorder::trace_recorder(result_file own, gzFile file)
    : own_{std::move(own)}, opened_{std::chrono::steady_clock::now()}, file_{file} {}

trace_recorder::~trace_recorder() {
  const mutex_lock lock{mutex_};
  errno = 0;
  const int code = gzclose(file_);
  if (code != Z_OK && failed_.ok()) fail(code == Z_ERRNO ? std::strerror(errno) : zError(code));
}

void trace_recorder::write_row(std::string_view action, address at, std::uint64_t requested_bytes,
                               stream_ref s) noexcept {
  const std::uint32_t thread = thread_number();
  const mutex_lock lock{mutex_};
  if (!failed_.ok()) return;
  try {
    const auto since = std::chrono::steady_clock::now() - opened_;  // under the lock, so that times never decrease
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(since).count();
    const auto s_whole = us / 1'000'000;
    std::array<char, 160> text;
    const auto end = fmt::format_to_n(text.data(), text.size(), "{},{:02}:{:02}:{:02}:{:06},{},{:#x},{},{}\n", thread,
                                      s_whole / 3600, s_whole / 60 % 60, s_whole % 60, us % 1'000'000, action, at,
                                      requested_bytes, stream_number(s));
    write({text.data(), end.size});
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
  errno = 0;
  if (gzwrite(file_, text.data(), static_cast<unsigned>(text.size())) != static_cast<int>(text.size())) fail_as_told();
}

void trace_recorder::fail_as_told() {
  int code = Z_OK;
  const char* const reason = gzerror(file_, &code);
  fail(code == Z_ERRNO ? std::strerror(errno) : reason);
}

void trace_recorder::fail(std::string_view reason) noexcept {
  failed_ = without_exceptions([&]() -> status {
    return {errc::bad_setting, fmt::format("GPUMEM_TRACE={}: cannot be written: {}; recording has stopped",
                                           printable(own_.path(), longest_path), reason)};
  });
  const status why = failed_;
  log_if_possible([&why] { return why.message(); });
}

/// Ends the gzip member; later rows begin another one, and readers read them as one stream.
status trace_recorder::flush() {
  const mutex_lock lock{mutex_};
  errno = 0;
  if (failed_.ok() && gzflush(file_, Z_FINISH) != Z_OK) fail_as_told();
  return failed_;
}

}  // namespace gpumem
