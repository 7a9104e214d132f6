#include "unserved.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "run_record.hpp"
#include "world.hpp"

namespace gpumem::simcuda {
namespace {

process_record* map_record() {
  const char* const folder = std::getenv("SIMCUDA_REPORT");
  if (folder == nullptr || *folder == '\0') return nullptr;
  const std::string path = std::string{folder} + "/" + std::to_string(::getpid()) + ".simcuda";
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* const at = ::mmap(nullptr, sizeof(process_record), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return at == MAP_FAILED ? nullptr : static_cast<process_record*>(at);
}

/// The record that `open_report` made, mapped once more; null: no report is requested, or there is no record yet.
process_record* own_record() {
  static process_record* mapped = nullptr;
  if (mapped == nullptr) mapped = map_record();
  return mapped;
}

template <std::size_t Size>
void write(char (&into)[Size], std::string_view text) {
  into[text.copy(into, Size - 1)] = '\0';
}

std::uint64_t since_ns(std::uint64_t begin) {
  timespec t{};
  ::clock_gettime(CLOCK_REALTIME, &t);
  const auto now = static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(t.tv_nsec);
  return now > begin ? now - begin : 0;
}

}  // namespace

void note_card_numbers() {
  process_record* const record = own_record();
  if (record == nullptr) return;
  for (const auto& g : the_world().gpus) {
    if (g->ordinal < report_cards) record->card[g->ordinal].number = g->card;
  }
}

void note_refused_before(const gpu& on, std::string_view function, std::uint64_t bytes, std::string_view why) {
  process_record* const record = own_record();
  if (record == nullptr) return;
  const std::uint64_t index = record->refusals++;
  if (index >= report_refusals) return;
  refusal_record& into = record->refusal[index];
  into = {};
  into.at_ns = since_ns(record->began_ns);
  into.requested_bytes = bytes;
  if (the_world().shared != nullptr) into.others_bytes = the_world().shared->held_by_others(on.card);
  into.used_bytes = own_bytes(on) + into.others_bytes;
  into.card = on.ordinal;
  write(into.function, function);
  write(into.why, why);
}

void note_unsupported(std::string_view function) {
  process_record* const record = own_record();
  if (record != nullptr && record->unsupported++ == 0) write(record->first_unsupported, function);
}

}  // namespace gpumem::simcuda
