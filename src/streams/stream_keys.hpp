// Derives keys from stream handles, and asks the device about streams and captures. Needs no lock.
#pragma once

#include <cstdint>

#include "gpumem/device.hpp"
#include "gpumem/settings.hpp"
#include "stream_handle.hpp"

namespace gpumem {

class stream_keys {
 public:
  stream_keys(device& device, stream_id_mode ids) noexcept : device_{device}, ids_{ids} {}

  /// True if the key needs no driver call: the default stream, and under `notify` every stream but a per-thread one.
  [[nodiscard]] bool is_known(stream_ref stream) const noexcept {
    return never_ends(stream) || (ids_ == stream_id_mode::notify && !is_per_thread(stream));
  }
  /// Requires `is_known`.
  [[nodiscard]] static std::uint64_t known(stream_ref stream) noexcept {
    return never_ends(stream) ? 0 : number_of(stream);
  }
  /// The stream's key; under `query` this asks the device. Requires that under `query` a created stream is part of no
  /// capture (else: `stream_slots::key_while_capturing`).
  [[nodiscard]] result<std::uint64_t> key_of(stream_ref stream) const {
    if (is_known(stream)) return known(stream);
    return device_.stream_id(stream);
  }
  /// True under `query` for a created stream: its handle names one stream at a time, but the program may have destroyed
  /// it without notice.
  [[nodiscard]] bool is_created_under_query(stream_ref stream) const noexcept {
    return ids_ == stream_id_mode::query && number_of(stream) > 2;
  }
  /// True if a fence can be recorded on the handle at any time until the stream is known to have ended: under `notify`
  /// for the default stream and created streams, under `query` only for the default stream. Never for a per-thread
  /// stream, whose handle means another stream in another thread.
  [[nodiscard]] bool stays_valid(stream_ref stream) const noexcept {
    return !is_per_thread(stream) && (ids_ == stream_id_mode::notify || never_ends(stream));
  }
  /// True if a capture may be under way unnoticed. An event on the whole context then needs a permit
  /// (`context_events`).
  [[nodiscard]] bool captures_may_hide() const noexcept {
    return ids_ == stream_id_mode::query && device_.info().reports_captures;
  }
  /// True while a blocking stream captures, noticed or not: an event on the context, or a give-back, would invalidate
  /// that capture. Asks the driver, which does not report non-blocking streams. Needs no stream handle, and invalidates
  /// nothing.
  [[nodiscard]] bool blocking_stream_captures() const noexcept {
    if (!captures_may_hide()) return false;
    const result<bool> any = device_.blocking_stream_captures();
    return any ? *any : any.code() != errc::unsupported;
  }
  /// True if the stream, whose handle is valid, is known to be part of no capture.
  [[nodiscard]] bool captures_nothing(stream_ref stream) const noexcept {
    const result<std::uint64_t> capture = device_.capture_id(stream);
    return capture && *capture == 0;
  }

 private:
  device& device_;
  stream_id_mode ids_;
};

}  // namespace gpumem
