#include "quiescence_detector.hpp"

namespace gpumem::cli {

bool quiescence_detector::look(const std::vector<simulated_process>& processes, clock::time_point moment) {
  if (longest_s_ <= 0) return false;
  std::uint64_t figures = processes.size();
  reads_ = 0;
  for (const simulated_process& each : processes) {
    reads_ += each.record.host_values_read;
    figures += each.record.refusals;
    for (const simcuda::card_record& card : each.record.card) figures += card.peak_used_bytes + card.peak_live_bytes;
  }
  if (figures != figures_) {
    figures_ = figures;
    reads_before_ = reads_;
    since_ = moment;
  }
  const std::chrono::duration<double> same = moment - since_;
  return same.count() >= longest_s_ && reads() >= least_reads;
}

}  // namespace gpumem::cli
