/// Records GPUMEM_TRACE: every allocation and free as a row of RMM's CSV log.
///
/// Any thread; one mutex guards the row and the file. Rows are in the order of the calls, so no row allocates a live
/// pointer. A row is in the file before the recorded call returns, so it survives a crash. A write error ends the
/// recording; it is logged once, and `flush` returns it from then on. Calls of a forked child are not recorded, because
/// its parent writes the file.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "allocation_recorder.hpp"
#include "checked_mutex.hpp"
#include "gpumem/device.hpp"
#include "gpumem/status.hpp"
#include "recording_file.hpp"
#include "written_file.hpp"

namespace gpumem {

class trace_recorder final : public allocation_recorder {
 public:
  /// Creates or empties the file, or if another process writes it, this process's own file (written_file.hpp).
  /// Compresses it if the name ends in `.gz`. `bad_setting` names path and reason.
  static result<std::unique_ptr<trace_recorder>> open(const std::string& path);

  void allocated(address begin, std::uint64_t requested_bytes, stream_ref stream) noexcept override {
    write_row("allocate", begin, requested_bytes, stream);
  }
  void refused(const oom_report& why, stream_ref stream) noexcept override;
  void freed(address begin, std::uint64_t requested_bytes, stream_ref stream) noexcept override {
    write_row("free", begin, requested_bytes, stream);
  }
  [[nodiscard]] std::string recording() const override { return own_.path(); }
  /// Completes the file with every row so far, compressed or not.
  status flush() override;

 private:
  explicit trace_recorder(written_file own) : own_{std::move(own)} {}
  /// `pointer`, an address or text, is the value of the pointer column.
  template <typename Pointer>
  void write_row(std::string_view action, const Pointer& pointer, std::uint64_t requested_bytes,
                 stream_ref stream) noexcept;
  std::uint32_t stream_number(stream_ref stream) GPUMEM_REQUIRES(mutex_);
  void write(std::string_view text) GPUMEM_REQUIRES(mutex_);
  /// Ends the recording for this reason.
  void fail(std::string_view reason) noexcept GPUMEM_REQUIRES(mutex_);

  written_file own_;
  const std::chrono::steady_clock::time_point opened_ = std::chrono::steady_clock::now();
  checked_mutex mutex_;
  recording_file file_ GPUMEM_GUARDED_BY(mutex_);
  std::unordered_map<void*, std::uint32_t> streams_ GPUMEM_GUARDED_BY(mutex_);
  status failed_ GPUMEM_GUARDED_BY(mutex_);
};

}  // namespace gpumem
