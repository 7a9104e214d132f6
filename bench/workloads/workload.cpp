#include "workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "assign_or_return.hpp"
#include "bits.hpp"
#include "gpumem/request.hpp"
#include "gpumem/settings.hpp"
#include "inputs.hpp"
#include "text.hpp"

namespace gpumem::bench {
namespace {

constexpr std::uint64_t most_ops = 100'000'000;

result<std::uint64_t> whole(std::string_view option, std::string_view text, std::uint64_t least, std::uint64_t most) {
  const auto value = whole_number<std::uint64_t>(text);
  if (value && *value >= least && *value <= most) return *value;
  return status{errc::bad_setting,
                fmt::format("{}={}: expected a whole number from {} to {}", option, printable(text), least, most)};
}

/// The name of the only workload with this option; empty if several have it.
std::string_view only_of(std::string_view option) {
  return option == "streams" ? "pipeline" : option == "tenants" ? "tenants" : option == "like" ? "random" : "";
}

status apply(std::string_view workload, std::string_view part, workload_shape& shape,
             std::set<std::string, std::less<>>& named) {
  const std::size_t equals = part.find('=');
  const std::string_view option = part.substr(0, equals);
  if (!named.emplace(option).second) return {errc::bad_setting, fmt::format("{} is named twice", printable(option))};
  if (const std::string_view owner = only_of(option); !owner.empty() && owner != workload) {
    return {errc::bad_setting, fmt::format("{} is an option of {} alone", option, owner)};
  }
  const std::string_view value = equals == std::string_view::npos ? std::string_view{} : part.substr(equals + 1);
  const auto store = [&](auto& field, std::uint64_t least, std::uint64_t most) -> status {
    ASSIGN_OR_RETURN(const auto read, whole(option, value, least, most));
    field = static_cast<std::decay_t<decltype(field)>>(read);
    return {};
  };
  if (option == "ops") return store(shape.ops, 1, most_ops);
  if (option == "seed") return store(shape.seed, 0, UINT64_MAX);
  if (option == "streams") return store(shape.streams, 1, 64);
  if (option == "tenants") return store(shape.tenants, 1, 16);
  if (option == "like") return shape.like = value, status{};
  if (option == "peak") {
    ASSIGN_OR_RETURN(const auto bytes, parse_bytes(value, "peak"));
    if (bytes < mib || bytes > tib) {
      return {errc::bad_setting, fmt::format("peak={}: expected 1MiB to 1TiB", printable(value))};
    }
    shape.peak_bytes = bytes;
    return {};
  }
  return {errc::bad_setting,
          fmt::format("'{}' is no option of a workload; expected ops, peak, seed, streams, tenants or like",
                      printable(option))};
}

result<trace> generate(std::string_view name, const workload_shape& shape) {
  if (name == "random") {
    const auto like =
        load_trace(bundled_traces_folder() + "/" + (shape.like.empty() ? "gpt2_varlen" : shape.like) + ".csv.gz");
    if (!like) return status{errc::bad_setting, "like: " + like.why().message()};
    return random_workload(shape, *like);
  }
  if (name == "training") return training_workload(shape);
  if (name == "epochs") return epochs_workload(shape);
  if (name == "serving") return serving_workload(shape);
  if (name == "robson") return robson_workload(shape);
  if (name == "pipeline") return pipeline_workload(shape);
  if (name == "tenants") return tenants_workload(shape);
  std::string known;
  for (const workload_entry& each : known_workloads()) known += (known.empty() ? "" : ", ") + std::string{each.name};
  return status{errc::bad_setting, fmt::format("expected one of {}", known)};
}

}  // namespace

const std::vector<workload_entry>& known_workloads() {
  static const std::vector<workload_entry> all{
      {"random", "sizes and lifetimes drawn from what was fitted to a bundled trace"},
      {"training", "steps of forward, backward and update, every batch of another shape"},
      {"epochs", "the same with fixed shapes in an epoch, and an evaluation of other shapes between"},
      {"serving", "requests whose contiguous caches grow while they last"},
      {"robson", "Robson's adversary, against best fit in one region"},
      {"pipeline", "blocks handed from one stream to the next"},
      {"tenants", "several unlike programs on one card, each on a stream of its own"}};
  return all;
}

result<trace> make_workload(std::string_view text, std::uint64_t seed) {
  workload_shape shape;
  shape.seed = seed;
  const std::size_t comma = text.find(',');
  std::set<std::string, std::less<>> named;
  status went;
  for (std::size_t position = comma; position != std::string_view::npos && went.ok();) {
    const std::size_t next = text.find(',', position + 1);
    const std::string_view part =
        text.substr(position + 1, next == std::string_view::npos ? next : next - position - 1);
    went = apply(text.substr(0, comma), part, shape, named);
    position = next;
  }
  result<trace> made = went.ok() ? generate(text.substr(0, comma), shape) : result<trace>{went};
  if (!made) {
    return status{made.code(), fmt::format("workload '{}': {}", printable(text), made.why().message())};
  }
  made->name = text;
  made->path = text;
  return made;
}

trace_builder::trace_builder(unsigned streams) {
  for (unsigned i = 0; i < streams; ++i) made_.streams.push_back(i);
}

void trace_builder::add(op_kind kind, std::uint64_t bytes, std::uint32_t slot, std::uint16_t stream) {
  made_.ops.push_back({.time_ns = next_ns(), .bytes = bytes, .slot = slot, .stream = stream, .kind = kind});
}

std::uint32_t trace_builder::allocate(std::uint64_t bytes, std::uint16_t stream) {
  bytes = std::max<std::uint64_t>(bytes, 1);
  if (free_slots_.empty()) {
    free_slots_.push_back(made_.slots++);
    sizes_.push_back(0);
    streams_.push_back(0);
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  sizes_[slot] = bytes;
  streams_[slot] = stream;
  live_bytes_ += round_up(bytes, block_granularity);
  made_.peak_live_bytes = std::max(made_.peak_live_bytes, live_bytes_);
  add(op_kind::allocate, bytes, slot, stream);
  return slot;
}

void trace_builder::free(std::uint32_t slot, std::uint16_t on_stream) {
  add(op_kind::free, sizes_[slot], slot, on_stream);
  live_bytes_ -= round_up(sizes_[slot], block_granularity);
  sizes_[slot] = 0;
  free_slots_.push_back(slot);
}

trace trace_builder::done(std::string name) && {
  made_.name = std::move(name);
  return std::move(made_);
}

}  // namespace gpumem::bench
