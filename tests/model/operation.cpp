#include "operation.hpp"

#include <fmt/format.h>

#include <array>

#include "bits.hpp"
#include "gpumem/device.hpp"
#include "random.hpp"

namespace gpumem::model {
namespace {

constexpr std::array release_words{"", " on its own stream", " on stream", " stating everything"};
constexpr std::array misuse_words{"free again",
                                  "free a pointer that was never allocated",
                                  "free a pointer inside a block",
                                  "free with a wrong size",
                                  "free on a wrong device",
                                  "allocate on a device that does not exist",
                                  "allocate 0 bytes",
                                  "allocate nearly all of the address space",
                                  "allocate at an alignment that is no power of two",
                                  "allocate at a huge alignment",
                                  "record the use of a pointer that was never allocated",
                                  "limit a device that does not exist"};
static_assert(release_words.size() == static_cast<std::size_t>(release_variant::count_));
static_assert(misuse_words.size() == static_cast<std::size_t>(misuse_variant::count_));

/// The state that a generated list expects at each point; refusals make it wrong, which is harmless.
struct expectation {
  std::vector<unsigned> live;
  std::vector<unsigned> freed;
  std::vector<unsigned> graphs;
  unsigned capturing = 0;  ///< slot, or 0
  unsigned capture = 0;    ///< number of its operation
};

struct weighted {
  op_kind kind;
  unsigned weight;
};
constexpr std::array weights{
    weighted{op_kind::allocate, 320},      weighted{op_kind::release, 270},      weighted{op_kind::record_use, 60},
    weighted{op_kind::work, 80},           weighted{op_kind::advance, 60},       weighted{op_kind::create_stream, 25},
    weighted{op_kind::destroy_stream, 15}, weighted{op_kind::capture_begin, 12}, weighted{op_kind::capture_end, 18},
    weighted{op_kind::graph_launch, 12},   weighted{op_kind::graph_release, 10}, weighted{op_kind::trim, 12},
    weighted{op_kind::set_limit, 12},      weighted{op_kind::misuse, 60},        weighted{op_kind::arm_callback, 8},
    weighted{op_kind::fault, 25},          weighted{op_kind::foreign, 10}};

/// The calls that an allocator makes; faults in the others would have no effect.
constexpr std::array faulty_calls{device_call::alloc,      device_call::free,           device_call::memory,
                                  device_call::record,     device_call::record_context, device_call::query,
                                  device_call::wait_host,  device_call::wait_stream,    device_call::stream_id,
                                  device_call::synchronize};

op_kind choose_kind(random_numbers& random, bool with_faults) {
  unsigned total = 0;
  for (const weighted& w : weights) total += w.weight;
  while (true) {
    std::uint64_t at = random.below(total);
    for (const weighted& w : weights) {
      if (at < w.weight) {
        if (w.kind == op_kind::fault && !with_faults) break;
        return w.kind;
      }
      at -= w.weight;
    }
  }
}

std::uint64_t random_size(random_numbers& random, std::uint64_t capacity_bytes) {
  switch (random.below(10)) {
    case 0:
    case 1:
    case 2:
      return 1 + random.below(4 * kib);
    case 3:
      return 512 * (1 + random.below(64));
    case 4:
    case 5:
    case 6:
      return 1 + random.below(mib);
    case 7:
      return mib / 2 * (1 + random.below(20));
    case 8:
      return 1 + random.below(16 * mib);
    default:
      return 1 + random.below(capacity_bytes / 3);
  }
}

unsigned pick(random_numbers& random, const std::vector<unsigned>& from) {
  return from.empty() ? 0 : from[random.below(from.size())];
}

unsigned take(random_numbers& random, std::vector<unsigned>& from) {
  if (from.empty()) return 0;
  const std::size_t at = random.below(from.size());
  const unsigned taken = from[at];
  from[at] = from.back();
  from.pop_back();
  return taken;
}

void fill_in(operation& op, random_numbers& random, expectation& world, const generator_config& with) {
  op.stream = static_cast<unsigned>(random.below(stream_slots));
  op.pool = static_cast<unsigned>(random.below(with.pools));
  switch (op.kind) {
    case op_kind::allocate:
      if (world.capturing != 0 && random.below(2) == 0) op.stream = world.capturing;
      op.amount = random_size(random, with.capacity_bytes);
      op.alignment = random.below(6) == 0 ? std::uint64_t{1} << random.below(21) : 512;
      world.live.push_back(op.number);
      break;
    case op_kind::release:
      op.block = take(random, world.live);
      op.variant = static_cast<unsigned>(random.below(static_cast<unsigned>(release_variant::count_)));
      world.freed.push_back(op.block);
      break;
    case op_kind::record_use:
    case op_kind::work:
      op.block = pick(random, world.live);
      op.amount = random.below(3'000'000);
      break;
    case op_kind::advance:
      op.amount = random.below(4'000'000);
      break;
    case op_kind::create_stream:
    case op_kind::destroy_stream:
      op.stream = 1 + static_cast<unsigned>(random.below(stream_slots - 1));
      op.variant = static_cast<unsigned>(random.below(2));
      break;
    case op_kind::capture_begin:
      op.stream = 1 + static_cast<unsigned>(random.below(stream_slots - 1));
      if (world.capturing == 0) {
        world.capturing = op.stream;
        world.capture = op.number;
      }
      break;
    case op_kind::capture_end:
      if (world.capturing != 0) {
        op.stream = world.capturing;
        world.graphs.push_back(world.capture);
        world.capturing = 0;
      }
      break;
    case op_kind::graph_launch:
      op.block = pick(random, world.graphs);
      op.amount = random.below(3'000'000);
      break;
    case op_kind::graph_release:
      op.block = take(random, world.graphs);
      break;
    case op_kind::trim:
      op.amount = random.below(3) == 0 ? random.below(64 * mib) : UINT64_MAX;
      break;
    case op_kind::set_limit:
      op.amount = 1 + random.below(with.capacity_bytes);
      break;
    case op_kind::misuse:
      op.variant = static_cast<unsigned>(random.below(static_cast<unsigned>(misuse_variant::count_)));
      op.block = op.variant == static_cast<unsigned>(misuse_variant::double_free) ? pick(random, world.freed)
                                                                                  : pick(random, world.live);
      op.amount = random.below(2048);
      break;
    case op_kind::arm_callback:
      op.variant = 1 + static_cast<unsigned>(random.below(3));
      break;
    case op_kind::fault:
      op.variant = static_cast<unsigned>(faulty_calls[random.below(faulty_calls.size())]);
      op.amount = 1 + random.below(3);
      break;
    case op_kind::foreign:
      op.amount = random.below(4) == 0 ? random.below(with.capacity_bytes) : 0;
      break;
  }
}

}  // namespace

std::string operation::to_string() const {
  const std::string start = fmt::format("#{} ", number);
  switch (kind) {
    case op_kind::allocate:
      return start + fmt::format("allocate {} bytes at {} on stream {} in pool {}", amount, alignment, stream, pool);
    case op_kind::release: {
      std::string line = start + fmt::format("free block {}{}", block, release_words.at(variant));
      if (variant == static_cast<unsigned>(release_variant::other_stream)) line += fmt::format(" {}", stream);
      return line;
    }
    case op_kind::record_use:
      return start + fmt::format("record a use of block {} by stream {} for {} ns", block, stream, amount);
    case op_kind::work:
      return start + fmt::format("use block {} on stream {} for {} ns", block, stream, amount);
    case op_kind::advance:
      return start + fmt::format("advance by {} ns", amount);
    case op_kind::create_stream:
      return start + fmt::format("create stream {}", stream);
    case op_kind::destroy_stream:
      return start + fmt::format("destroy stream {}{}", stream, variant % 2 == 0 ? ", released first" : "");
    case op_kind::capture_begin:
      return start + fmt::format("begin a capture on stream {}", stream);
    case op_kind::capture_end:
      return start + fmt::format("end the capture on stream {}", stream);
    case op_kind::graph_launch:
      return start + fmt::format("launch graph {} on stream {} for {} ns", block, stream, amount);
    case op_kind::graph_release:
      return start + fmt::format("release graph {}", block);
    case op_kind::trim:
      return start + (amount == UINT64_MAX ? fmt::format("trim pool {}", pool)
                                           : fmt::format("trim pool {} by {} bytes", pool, amount));
    case op_kind::set_limit:
      return start + fmt::format("limit pool {} to {} bytes", pool, amount);
    case op_kind::misuse:
      return start + fmt::format("misuse: {} (block {}, pool {}, {})", misuse_words.at(variant), block, pool, amount);
    case op_kind::arm_callback:
      return start + fmt::format("free a block in each of the next {} callbacks", variant);
    case op_kind::fault:
      return start + fmt::format("call {} of {} fails", amount, gpumem::to_string(static_cast<device_call>(variant)));
    case op_kind::foreign:
      return start + fmt::format("other processes hold {} bytes", amount);
  }
  return start + "unknown";
}

std::vector<operation> random_operations(std::uint64_t seed, unsigned count, const generator_config& with) {
  random_numbers random{seed};
  expectation world;
  std::vector<operation> out;
  out.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    operation op;
    op.kind = choose_kind(random, with.with_faults);
    op.number = i + 1;  // 0 names nothing
    fill_in(op, random, world, with);
    out.push_back(op);
  }
  return out;
}

}  // namespace gpumem::model
