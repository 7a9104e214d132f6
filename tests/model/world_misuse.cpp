/// Misuse: each kind is refused with its own code, and changes nothing.
#include <cstring>

#include "expect.hpp"
#include "world.hpp"

namespace gpumem::model {
namespace {

bool equal_but_for_counters(statistics a, const statistics& b) {
  a.misuses = b.misuses;
  a.out_of_memory = b.out_of_memory;
  a.locks = b.locks;
  return std::memcmp(&a, &b, sizeof(statistics)) == 0;
}

}  // namespace

void world::misuse(const operation& op) {
  const statistics before = stats_of(op.pool);
  const live_range* block = heap_.find(op.block);
  int foreign = 0;
  status answer;
  const auto request = [&](std::size_t bytes, std::size_t alignment, int device) {
    return allocator_->try_allocate({.bytes = bytes, .stream = {}, .device = device, .alignment = alignment}).why();
  };
  const int pool = static_cast<int>(op.pool);
  const int no_device = op.amount % 2 == 0 ? -1 : static_cast<int>(tallies_.size());
  errc expected = errc::invalid_argument;
  const std::uint64_t misuses_before = misuses();
  bool a_free = true;
  switch (static_cast<misuse_variant>(op.variant)) {
    case misuse_variant::double_free: {
      const auto was = freed_.find(op.block);
      if (was == freed_.end() || heap_.overlapping(was->second, 1) != nullptr) return;
      answer = allocator_->try_deallocate(pointer(was->second));
      expected = answer.code() == errc::unknown_pointer ? errc::unknown_pointer : errc::double_free;
      break;
    }
    case misuse_variant::foreign_pointer:
      answer = allocator_->try_deallocate(&foreign);
      expected = errc::unknown_pointer;
      break;
    case misuse_variant::inner_pointer:
      if (block == nullptr || block->bytes == 512) return;
      answer = allocator_->try_deallocate(pointer(block->begin + 512));
      expected = errc::unknown_pointer;
      break;
    case misuse_variant::wrong_size:
      if (block == nullptr) return;
      answer = allocator_->try_deallocate(pointer(block->begin), {.bytes = block->requested_bytes + 1 + op.amount});
      expected = errc::wrong_size;
      break;
    case misuse_variant::wrong_device:
      if (block == nullptr) return;
      answer = allocator_->try_deallocate(pointer(block->begin), {.device = static_cast<int>(block->pool) + 1});
      expected = errc::wrong_device;
      break;
    case misuse_variant::request_on_no_device:
      a_free = false;
      answer = request(512, 512, no_device);
      expected = errc::wrong_device;
      break;
    case misuse_variant::zero_bytes:
      a_free = false;
      answer = request(0, 512, pool);
      break;
    case misuse_variant::near_size_max:
      a_free = false;
      answer = request(SIZE_MAX - op.amount, 512, pool);
      if (answer.code() == errc::out_of_memory) {  // unless rounding overflows, the limit refuses it
        ++tallies_[op.pool].out_of_memory;
        return;
      }
      break;
    case misuse_variant::bad_alignment:
      a_free = false;
      answer = request(512, op.amount % 2 == 0 ? 0 : 768, pool);
      break;
    case misuse_variant::huge_alignment:
      a_free = false;
      answer = request(512, std::size_t{1} << (40 + op.amount % 24), pool);
      if (answer.code() == errc::out_of_memory) {
        ++tallies_[op.pool].out_of_memory;
        return;
      }
      break;
    case misuse_variant::use_of_foreign_pointer:
      a_free = false;
      answer = allocator_->record_use(&foreign, {});
      expected = errc::unknown_pointer;
      break;
    case misuse_variant::limit_of_no_device:
      a_free = false;
      answer = allocator_->set_limit(no_device, 1U << 30).why();
      expected = errc::wrong_device;
      break;
    case misuse_variant::count_:
      return;
  }
  expect(answer.code() == expected, "answered {} ({}), expected {}", to_string(answer.code()), answer.message(),
         to_string(expected));
  expect(!answer.message().empty(), "refused without a word");
  expect(misuses() == misuses_before + (a_free ? 1 : 0), "{} misuses are counted, there were {} before", misuses(),
         misuses_before);
  for (unsigned p = 0; p < tallies_.size(); ++p) tallies_[p].misuses = stats_of(p).misuses;
  expect(equal_but_for_counters(before, stats_of(op.pool)), "a refused misuse changed the pool");
}

std::uint64_t world::misuses() const {
  std::uint64_t all = 0;
  for (unsigned p = 0; p < tallies_.size(); ++p) all += stats_of(p).misuses;
  return all;
}

}  // namespace gpumem::model
