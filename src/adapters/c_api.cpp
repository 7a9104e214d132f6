// gpumem.h: opening, memory, streams and limits. c_api_report.cpp has the read-only functions.
//
// Only gpumem_close frees a handle, so nothing here needs a lock.
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "assign_or_return.hpp"
#include "c_edge.hpp"
#include "device_selection.hpp"
#include "gpumem/default_allocator.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/sim_device.hpp"
#include "log.hpp"

namespace {

using namespace gpumem::c_edge;
using gpumem::errc;
using gpumem::result;
using gpumem::status;

/// Reads settings from `name=value` pairs separated by spaces, then from the environment.
result<gpumem::settings> settings_of(const char* text) {
  gpumem::settings options;
  std::istringstream pairs{text == nullptr ? "" : text};
  for (std::string pair; pairs >> pair;) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos) {
      return status{errc::bad_setting, "setting '" + pair + "': expected name=value, as in limit=2GiB"};
    }
    if (status ok = options.set(pair.substr(0, equals), pair.substr(equals + 1)); !ok) return ok;
  }
  std::vector<std::string> problems;
  if (status ok = options.apply(gpumem::process_environment(), &problems); !ok) return ok;
  for (const std::string& line : problems) gpumem::log_line(line);
  return options;
}

status open_over(std::vector<std::unique_ptr<gpumem::device>> devices, std::span<gpumem::device* const> chosen,
                 const gpumem::settings& options, gpumem_allocator** allocator) {
  auto made = std::make_unique<gpumem_allocator>();
  made->devices = std::move(devices);
  ASSIGN_OR_RETURN(made->owned, gpumem::allocator::open(chosen, options));
  made->allocator = made->owned.get();
  *allocator = made.release();
  return {};
}

}  // namespace

extern "C" {

const char* gpumem_code_name(gpumem_code code) {
  if (code == GPUMEM_HOST_FAILURE) return "host_failure";
  if (code < GPUMEM_OK || code > GPUMEM_POLICY_FAILED) return "unknown code";
  return gpumem::to_string(static_cast<errc>(code)).data();  // a string literal
}

const char* gpumem_last_message(void) { return gpumem::c_edge::last_message.c_str(); }

gpumem_code gpumem_default(gpumem_allocator** allocator) {
  return guarded([&]() -> status {
    if (allocator == nullptr) return null_argument("allocator");
    *allocator = nullptr;
    ASSIGN_OR_RETURN(const auto found, gpumem::default_allocator());
    static auto* const handle = new gpumem_allocator{{}, {}, found};  // never destroyed
    *allocator = handle;
    return {};
  });
}

gpumem_code gpumem_check_setting(const char* name, const char* value) {
  return guarded([&]() -> status {
    if (name == nullptr || value == nullptr) return null_argument(name == nullptr ? "the name" : "the value");
    return gpumem::settings{}.set(name, value);
  });
}

gpumem_code gpumem_set_default(const char* name, const char* value) {
  return guarded([&]() -> status {
    if (name == nullptr) return null_argument("the name");
    return gpumem::set_default_option(name, value != nullptr ? std::optional<std::string_view>{value} : std::nullopt);
  });
}

gpumem_code gpumem_check_environment(void) {
  return guarded([]() -> status {
    gpumem::settings options;
    if (const status applied = options.apply(gpumem::process_environment()); !applied) return applied;
    const auto known = gpumem::find_policy(options.policy);
    if (known) return {};
    return {known.why().code(), "GPUMEM_POLICY=" + options.policy + ": " + known.why().message()};
  });
}

gpumem_code gpumem_open(const char* settings, gpumem_allocator** allocator) {
  return guarded([&]() -> status {
    if (allocator == nullptr) return null_argument("allocator");
    *allocator = nullptr;
    ASSIGN_OR_RETURN(const auto options, settings_of(settings));
    ASSIGN_OR_RETURN(auto found, gpumem::open_selected_devices(options));
    return open_over(std::move(found.all), found.chosen, options, allocator);
  });
}

gpumem_code gpumem_open_simulated(uint64_t bytes, int devices, int host_memory, const char* settings,
                                  gpumem_allocator** allocator) {
  return guarded([&]() -> status {
    if (allocator == nullptr) return null_argument("allocator");
    *allocator = nullptr;
    if (devices < 1 || devices > 16) {
      return {errc::invalid_argument, std::to_string(devices) + " devices: expected 1 to 16"};
    }
    const std::uint64_t granularity = gpumem::sim_config{}.granularity_bytes;
    if (bytes < granularity || bytes > (std::uint64_t{1} << 40)) {
      return {errc::invalid_argument,
              std::to_string(bytes) + " bytes a device: expected " + std::to_string(granularity) + " to 2^40"};
    }
    ASSIGN_OR_RETURN(const auto options, settings_of(settings));
    std::vector<std::unique_ptr<gpumem::device>> made;
    for (int ordinal = 0; ordinal < devices; ++ordinal) {
      gpumem::sim_config config;
      config.ordinal = ordinal;
      config.capacity_bytes = bytes;
      config.host_memory = host_memory != 0;
      // Each device gets its own address range of 4 TiB.
      config.first_address += static_cast<std::uint64_t>(ordinal) << 42;
      config.address_space_bytes = std::uint64_t{1} << 42;
      made.push_back(std::make_unique<gpumem::sim_device>(config));
    }
    std::vector<gpumem::device*> all;
    for (const auto& d : made) all.push_back(d.get());
    return open_over(std::move(made), all, options, allocator);
  });
}

gpumem_code gpumem_simulated_stream(gpumem_allocator* memory, int device, void** stream) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) -> status {
    if (stream == nullptr) return null_argument("stream");
    *stream = nullptr;
    if (!exists(allocator, device)) return no_such_device(allocator, device);
    const int physical = allocator.devices()[static_cast<std::size_t>(device)].physical_ordinal;
    for (const auto& d : memory->devices) {
      auto* const simulated = dynamic_cast<gpumem::sim_device*>(d.get());
      if (simulated == nullptr || simulated->info().ordinal != physical) continue;
      *stream = simulated->create_stream().handle;
      return {};
    }
    return {errc::unsupported, "device " + std::to_string(device) + " is not simulated: create its streams with CUDA"};
  });
}

gpumem_code gpumem_close(gpumem_allocator* memory) {
  return guarded([&]() -> status {
    if (memory == nullptr) return {};
    if (memory->owned == nullptr) {
      return {errc::invalid_argument, "the process's own allocator is never closed; expected one that was opened"};
    }
    delete memory;
    return {};
  });
}

gpumem_code gpumem_allocate(gpumem_allocator* memory, size_t bytes, int device, void* stream, void** block) {
  return gpumem_allocate_aligned(memory, bytes, gpumem::block_granularity, device, stream, block);
}

gpumem_code gpumem_allocate_aligned(gpumem_allocator* memory, size_t bytes, size_t alignment, int device, void* stream,
                                    void** block) {
  if (block != nullptr) *block = nullptr;
  return with_allocator(memory, [&](gpumem::allocator& allocator) -> status {
    if (block == nullptr) return null_argument("block");
    try {
      *block = allocator.allocate({.bytes = bytes, .stream = {stream}, .device = device, .alignment = alignment});
      return {};
    } catch (const gpumem::out_of_memory& refused) {
      return {errc::out_of_memory, refused.what()};
    } catch (const gpumem::bad_request& refused) {
      return refused.why();
    }
  });
}

gpumem_code gpumem_free(gpumem_allocator* memory, void* block) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) { return allocator.try_deallocate(block); });
}

gpumem_code gpumem_free_on(gpumem_allocator* memory, void* block, void* stream) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) {
    gpumem::free_args stated;
    stated.stream = gpumem::stream_ref{stream};
    return allocator.try_deallocate(block, stated);
  });
}

gpumem_code gpumem_record_use(gpumem_allocator* memory, void* block, void* stream) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) { return allocator.record_use(block, {stream}); });
}

gpumem_code gpumem_stream_release(gpumem_allocator* memory, void* stream) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) { return allocator.stream_release({stream}); });
}

gpumem_code gpumem_capture_begin(gpumem_allocator* memory, void* stream) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) { return allocator.capture_begin({stream}); });
}

gpumem_code gpumem_capture_end(gpumem_allocator* memory, void* stream, uint64_t* graph) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) -> status {
    if (graph == nullptr) return null_argument("graph");
    *graph = 0;
    ASSIGN_OR_RETURN(const auto left, allocator.capture_end({stream}));
    *graph = left.id;
    return {};
  });
}

gpumem_code gpumem_captures_ended(gpumem_allocator* memory, int physical_device) {
  return with_allocator(memory,
                        [&](gpumem::allocator& allocator) { return allocator.captures_ended(physical_device); });
}

gpumem_code gpumem_graph_release(gpumem_allocator* memory, uint64_t graph) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) { return allocator.graph_release({graph}); });
}

gpumem_code gpumem_trim(gpumem_allocator* memory, int device, uint64_t bytes, uint64_t* returned) {
  if (returned != nullptr) *returned = 0;
  return with_allocator(memory, [&](gpumem::allocator& allocator) -> status {
    ASSIGN_OR_RETURN(const auto done, allocator.trim(device, bytes));
    if (returned != nullptr) *returned = done.returned_bytes;
    return {};
  });
}

gpumem_code gpumem_set_limit(gpumem_allocator* memory, int device, uint64_t bytes, uint64_t* over_bytes) {
  if (over_bytes != nullptr) *over_bytes = 0;
  return with_allocator(memory, [&](gpumem::allocator& allocator) -> status {
    ASSIGN_OR_RETURN(const auto applied, allocator.set_limit(device, bytes));
    if (over_bytes != nullptr) *over_bytes = applied.over_bytes;
    return {};
  });
}

gpumem_code gpumem_on_out_of_memory(gpumem_allocator* memory, gpumem_oom_callback callback, void* user) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) -> status {
    if (callback == nullptr) return null_argument("the callback");
    allocator.on_out_of_memory(
        [callback, user](int device, std::uint64_t needed) { return callback(user, device, needed) != 0; });
    return {};
  });
}

gpumem_code gpumem_check(gpumem_allocator* memory, int device) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) { return allocator.check(device); });
}

gpumem_code gpumem_flush_trace(gpumem_allocator* memory) {
  return with_allocator(memory, [](gpumem::allocator& allocator) { return allocator.flush_trace(); });
}

}  // extern "C"
