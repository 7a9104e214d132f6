#include "unserved.hpp"

#include <fcntl.h>
#include <sys/mman.h>
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

}  // namespace

void note_card_numbers() {
  process_record* const record = own_record();
  if (record == nullptr) return;
  for (const auto& g : the_world().gpus) {
    if (g->ordinal < report_cards) record->card[g->ordinal].number = g->card;
  }
}

}  // namespace gpumem::simcuda
