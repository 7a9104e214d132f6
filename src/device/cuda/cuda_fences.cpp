// Fences, stream identities and captures of a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "assign_or_return.hpp"
#include "cuda_device.hpp"
#include "cuda_entered.hpp"

namespace gpumem {
namespace {

/// A fence's id is its event's address, which is even. An odd id is a deferred fence, which a later synchronization
/// completes.
fence deferred_fence(std::uint64_t number) { return {(number << 1) | 1}; }
bool is_deferred(fence fence) { return (fence.id & 1) != 0; }
CUevent event_of(fence fence) { return reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(fence.id)); }
fence fence_of(CUevent event) { return {static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(event))}; }
CUstream stream_of(stream_ref stream) { return static_cast<CUstream>(stream.handle); }

/// Describes a stream for the message of a failed call.
auto stream_text(stream_ref stream) {
  return [stream] { return fmt::format("of stream {}", stream.handle); };
}

/// The default streams belong to the current context.
bool depends_on_context(stream_ref stream) { return reinterpret_cast<std::uintptr_t>(stream.handle) <= 2; }
bool is_legacy(stream_ref stream) { return reinterpret_cast<std::uintptr_t>(stream.handle) <= 1; }

using on_gone = std::function<void()>;
void CUDA_CB graph_is_gone(void* data) {
  const std::unique_ptr<on_gone> gone{static_cast<on_gone*>(data)};
  (*gone)();
}

}  // namespace

result<CUevent> cuda_device::take_event() {
  {
    const mutex_lock lock{events_mutex_};
    if (!events_.empty()) {
      CUevent spare = events_.back();
      events_.pop_back();
      return spare;
    }
    if (events_.capacity() == events_made_)
      events_.reserve(2 * events_made_ + 1);  // so that keep_event need not allocate
    ++events_made_;
  }
  return make_event();
}

// Blocking synchronisation: a waiting host thread sleeps instead of spinning.
result<CUevent> cuda_device::make_event() {
  CUevent made = nullptr;
  const CUresult done = driver_.event_create(&made, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
  if (done != CUDA_SUCCESS) return driver_status(driver_, driver_.event_create.name, done);
  return made;
}

void cuda_device::keep_event(CUevent event) noexcept {
  const mutex_lock lock{events_mutex_};
  if (std::erase(foreign_events_, event) != 0) {
    driver_.event_destroy(event);
    return;
  }
  events_.push_back(event);
}

// Records an event on the context instead of the legacy stream: it covers the same work, but makes no stream wait. An
// event on the legacy stream would order all blocking streams before and after it.
result<fence> cuda_device::do_record(stream_ref stream) {
  if (is_legacy(stream) && driver_.ctx_record_event) return do_record_context();
  const entered scope{*this};
  if (!scope.ok()) return scope.why();
  ASSIGN_OR_RETURN(const auto e, take_event());
  const CUresult done = driver_.event_record(e, stream_of(stream));
  if (done == CUDA_SUCCESS) return fence_of(e);
  keep_event(e);
  return driver_status(driver_, driver_.event_record.name, done, fmt::format("on stream {}", stream.handle));
}

result<fence> cuda_device::do_record_context() {
  const entered scope{*this};
  if (!scope.ok()) return scope.why();
  if (!driver_.ctx_record_event) return deferred_fence(deferred_.fetch_add(1, std::memory_order_acq_rel) + 1);
  ASSIGN_OR_RETURN(const auto e, take_event());
  const CUresult done = driver_.ctx_record_event(context_.load(std::memory_order_acquire), e);
  if (done == CUDA_SUCCESS) return fence_of(e);
  keep_event(e);
  return driver_status(driver_, driver_.ctx_record_event.name, done, fmt::format("on device {}", info_.ordinal));
}

result<std::uint64_t> cuda_device::do_foreign_context(stream_ref stream) {
  if (depends_on_context(stream)) return std::uint64_t{0};
  CUcontext own = nullptr;
  if (status ok = context(&own); !ok) return ok;
  CUcontext theirs = nullptr;
  if (status ok = checked(driver_, driver_.stream_get_ctx, stream_text(stream), stream_of(stream), &theirs); !ok)
    return ok;
  return theirs == own ? std::uint64_t{0} : static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(theirs));
}

// Creates the event in that context, as cuCtxRecordEvent requires. If the context is destroyed, its work is done, so
// any fence serves.
result<fence> cuda_device::do_record_foreign(std::uint64_t context) {
  if (!driver_.ctx_record_event) {
    return status{errc::unsupported,
                  fmt::format("no event on another context with a driver of CUDA {}; expected 12.5 or later",
                              version_text(driver_.version))};
  }
  CUcontext theirs = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(context));
  unsigned long long id = 0;
  if (driver_.ctx_get_id(theirs, &id) != CUDA_SUCCESS) return do_record_context();
  const entered scope{*this};
  if (!scope.ok()) return scope.why();
  if (const CUresult e = driver_.ctx_push_current(theirs); e != CUDA_SUCCESS) {
    return driver_status(driver_, driver_.ctx_push_current.name, e);
  }
  result<CUevent> e = make_event();
  CUresult done = CUDA_SUCCESS;
  if (e) done = driver_.ctx_record_event(theirs, *e);
  CUcontext popped = nullptr;
  driver_.ctx_pop_current(&popped);
  if (!e) return e.why();
  if (done == CUDA_SUCCESS) {
    const mutex_lock lock{events_mutex_};
    foreign_events_.push_back(*e);
    return fence_of(*e);
  }
  driver_.event_destroy(*e);
  return driver_status(driver_, driver_.ctx_record_event.name, done, "on another context");
}

bool cuda_device::deferred_done(fence fence) const noexcept {
  return synchronized_.load(std::memory_order_acquire) >= fence.id >> 1;
}

result<bool> cuda_device::do_query(fence fence) {
  if (is_deferred(fence)) return deferred_done(fence);
  const entered scope{*this};
  if (!scope.ok()) return scope.why();
  const CUresult done = driver_.event_query(event_of(fence));
  if (done == CUDA_SUCCESS) return true;
  if (done == CUDA_ERROR_NOT_READY) return false;
  return driver_status(driver_, driver_.event_query.name, done);
}

status cuda_device::do_wait_host(fence fence) {
  if (is_deferred(fence)) return deferred_done(fence) ? status{} : do_synchronize();
  return in_context(
      driver_.event_synchronize, [] { return std::string_view{}; }, event_of(fence));
}

// Polls the events, because the driver can only wait for a single event, and without a limit. Spins for 20 us, then
// sleeps between polls, for at most 1 ms.
result<bool> cuda_device::do_wait_any(std::span<const fence> fences, std::uint64_t most_ns,
                                      const std::function<bool()>& stop) {
  const auto never_recorded = std::ranges::find_if(fences, is_deferred);
  if (never_recorded != fences.end()) {
    status waited = do_wait_host(*never_recorded);
    return waited ? result<bool>{true} : result<bool>{std::move(waited)};
  }
  constexpr std::chrono::microseconds first_pause{20};
  constexpr std::chrono::microseconds longest_pause{1000};
  const std::uint64_t begin_ns = clock_ns();
  std::chrono::microseconds pause{0};
  for (;;) {
    {
      const entered scope{*this};
      if (!scope.ok()) return scope.why();
      for (const fence f : fences) {
        const CUresult done = driver_.event_query(event_of(f));
        if (done == CUDA_SUCCESS) return true;
        if (done != CUDA_ERROR_NOT_READY) return driver_status(driver_, driver_.event_query.name, done);
      }
    }
    const std::uint64_t waited_ns = clock_ns() - begin_ns;
    if (waited_ns >= most_ns || stop()) return false;
    if (waited_ns < static_cast<std::uint64_t>(std::chrono::nanoseconds{first_pause}.count())) continue;
    pause = std::clamp(2 * pause, first_pause, longest_pause);
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(
        pause, std::chrono::nanoseconds{std::min<std::uint64_t>(most_ns - waited_ns, std::uint64_t{1} << 40)}));
  }
}

status cuda_device::do_wait_stream(stream_ref waiter, fence fence) {
  if (is_deferred(fence)) {
    if (deferred_done(fence)) return {};
    return {errc::unsupported,
            fmt::format("no stream can wait for all others with a driver of CUDA {}; expected 12.5 or later",
                        version_text(driver_.version))};
  }
  return in_context(driver_.stream_wait_event, stream_text(waiter), stream_of(waiter), event_of(fence),
                    CU_EVENT_WAIT_DEFAULT);
}

void cuda_device::do_drop(fence fence) noexcept {
  // In a forked child the pool's lock may stay locked for ever.
  if (fence && !is_deferred(fence) && condition() == device_condition::usable) keep_event(event_of(fence));
}

result<std::uint64_t> cuda_device::do_stream_id(stream_ref stream) {
  const auto ask = [&]() -> result<std::uint64_t> {
    unsigned long long id = 0;
    if (status ok = checked(driver_, driver_.stream_get_id, stream_text(stream), stream_of(stream), &id); !ok)
      return ok;
    return std::uint64_t{id};
  };
  if (!depends_on_context(stream) && condition() == device_condition::usable) return ask();
  // The ids of the thread's own stream on the latest devices. An id stays the same while the thread and its device
  // exist. Few, because a library that is opened late finds little room for its threads' variables.
  struct known_id {
    std::uint64_t device = 0;
    std::uint64_t id = 0;
  };
  thread_local std::array<known_id, 8> known;
  thread_local std::size_t next = 0;
  const bool per_thread = stream_of(stream) == CU_STREAM_PER_THREAD;
  if (per_thread && condition() == device_condition::usable) {
    const auto found = std::ranges::find(known, number_, &known_id::device);
    if (found != known.end()) return found->id;
  }
  const auto keep = [&](std::uint64_t id) { known[next++ % known.size()] = {number_, id}; };
  const entered scope{*this};
  if (!scope.ok()) return scope.why();
  if (per_thread) {
    // The driver refuses to tell the id of a stream that captures, and invalidates the capture. Any number serves that
    // names no other stream: the driver's are small.
    ASSIGN_OR_RETURN(const auto capture, do_capture_id(stream));
    static std::atomic<std::uint64_t> unnamed{std::uint64_t{3} << 62};
    if (capture != 0) {
      const std::uint64_t id = unnamed.fetch_add(1, std::memory_order_relaxed);
      keep(id);
      return id;
    }
  }
  result<std::uint64_t> id = ask();
  if (id && per_thread) keep(*id);
  return id;
}

result<std::uint64_t> cuda_device::do_capture_id(stream_ref stream) {
  std::optional<entered> scope;
  const bool usable = condition() == device_condition::usable;
  if (usable && is_legacy(stream)) return std::uint64_t{0};  // the legacy stream cannot capture
  CUcontext current = nullptr;
  const bool in_place = usable && (!depends_on_context(stream) || (driver_.ctx_get_current(&current) == CUDA_SUCCESS &&
                                                                   current != nullptr && current == context_.load()));
  if (!in_place) {
    scope.emplace(*this);
    if (!scope->ok()) return scope->why();
    if (is_legacy(stream)) return std::uint64_t{0};
  }
  CUstreamCaptureStatus capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  if (status ok = checked(driver_, driver_.stream_get_capture_info, stream_text(stream), stream_of(stream),
                          &capture_status, &id, nullptr, nullptr, nullptr);
      !ok) {
    return ok;
  }
  return capture_status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? std::uint64_t{id} : std::uint64_t{0};
}

// "If this is called on CU_STREAM_LEGACY (the "null stream") while a blocking stream in the same context is capturing,
// it will return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT and captureStatus is unspecified after the call. The blocking
// stream capture is not invalidated." (cuStreamIsCapturing, to which cuStreamGetCaptureInfo refers)
result<bool> cuda_device::do_blocking_stream_captures() {
  const entered scope{*this};
  if (!scope.ok()) return scope.why();
  CUstreamCaptureStatus capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult done =
      driver_.stream_get_capture_info(CU_STREAM_LEGACY, &capture_status, nullptr, nullptr, nullptr, nullptr);
  if (done == CUDA_SUCCESS) return false;
  if (done == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  return driver_status(driver_, driver_.stream_get_capture_info.name, done, "of the legacy stream");
}

void cuda_device::do_enter() noexcept { entered::begin_together(*this); }
void cuda_device::do_leave() noexcept { entered::end_together(*this); }

status cuda_device::do_watch_graph(stream_ref capturing, std::function<void()> gone) {
  const entered scope{*this};
  if (!scope.ok()) return scope.why();
  CUstreamCaptureStatus capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  if (status ok = checked(driver_, driver_.stream_get_capture_info, stream_text(capturing), stream_of(capturing),
                          &capture_status, nullptr, &graph, nullptr, nullptr);
      !ok) {
    return ok;
  }
  if (capture_status != CU_STREAM_CAPTURE_STATUS_ACTIVE || graph == nullptr) {
    return {errc::unsupported, fmt::format("stream {} captures nothing now", capturing.handle)};
  }
  auto call = std::make_unique<on_gone>(std::move(gone));
  CUuserObject object = nullptr;
  CUresult done = driver_.user_object_create(&object, call.get(), graph_is_gone, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (done != CUDA_SUCCESS) return driver_status(driver_, driver_.user_object_create.name, done);
  on_gone* const owned = call.release();  // the user object owns it from here on
  done = driver_.graph_retain_user_object(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (done == CUDA_SUCCESS) return {};
  *owned = [] {};  // the release below destroys the object, but no graph ends
  driver_.user_object_release(object, 1);
  return driver_status(driver_, driver_.graph_retain_user_object.name, done);
}

status cuda_device::do_synchronize() {
  const std::uint64_t covered = deferred_.load(std::memory_order_acquire);
  const auto doing = [this] { return fmt::format("of device {}", info_.ordinal); };
  if (status done = in_context(driver_.ctx_synchronize, doing); !done) return done;
  std::uint64_t seen = synchronized_.load(std::memory_order_relaxed);
  while (seen < covered && !synchronized_.compare_exchange_weak(seen, covered, std::memory_order_acq_rel)) {
  }
  return {};
}

}  // namespace gpumem
