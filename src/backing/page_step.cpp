#include "page_step.hpp"

namespace gpumem {
namespace {

using outcome = page_step::outcome;

status make_new(device& on, page_step& step) {
  for (page_step::run& r : step.runs) {
    if (r.moves) continue;
    const result<page_run> made = on.create(r.what.bytes);
    if (!made) {
      step.refused_bytes = r.what.bytes;
      for (page_step::run& other : step.runs) {
        if (other.moves || !other.what.pages) continue;
        static_cast<void>(on.destroy(other.what.pages));  // the first error is the one to report
        other.what.pages = {};
      }
      return made.why();
    }
    r.what.pages = *made;
    step.made_bytes += r.what.bytes;
  }
  return {};
}

/// The end of the stretch of moving runs that begins at `k` and lies side by side.
std::size_t end_of_stretch(const page_step& step, std::size_t k) {
  std::size_t end = k + 1;
  while (end < step.runs.size() && step.runs[end].moves &&
         step.runs[end].what.begin == step.runs[end - 1].what.begin + step.runs[end - 1].what.bytes) {
    ++end;
  }
  return end;
}

/// Takes back what was mapped or made so far, and gives it to the device: the step has failed.
void undo(device& on, page_step& step, std::size_t mapped) {
  for (std::size_t k = 0; k < step.runs.size(); ++k) {
    page_step::run& r = step.runs[k];
    if (r.is == outcome::lost || (r.moves && r.is == outcome::untouched)) continue;
    const status unmapped = k < mapped ? on.unmap(r.to, r.what.bytes) : status{};
    const bool gone = unmapped.ok() && on.destroy(r.what.pages).ok();
    r.is = gone ? outcome::destroyed : outcome::lost;
  }
}

/// The step has failed while nothing may be unmapped. A run that is mapped becomes the pool's where it can be opened.
void keep_mapped(device& gpu, page_step& step, std::size_t mapped, const segment_observers* observers) {
  for (std::size_t k = 0; k < step.runs.size(); ++k) {
    page_step::run& r = step.runs[k];
    if (k < mapped) {
      r.is = gpu.set_access(r.to, r.what.bytes) ? outcome::arrived : outcome::stranded;
      if (observers != nullptr && r.is == outcome::arrived) observers->added(r.to, r.what.bytes, true);
    } else {
      r.is = gpu.destroy(r.what.pages) ? outcome::destroyed : outcome::lost;
    }
  }
}

void end_failed(device& gpu, page_step& step, std::size_t mapped, const segment_observers* observers) {
  step.may_unmap ? undo(gpu, step, mapped) : keep_mapped(gpu, step, mapped, observers);
}

/// Tells observers before the call; if it fails, the memory is there as before.
status unmap_observed(device& on, address begin, std::uint64_t bytes, const segment_observers* observers) {
  if (observers != nullptr) observers->removing(begin, bytes, true);
  status unmapped = on.unmap(begin, bytes);
  if (observers != nullptr && !unmapped) observers->added(begin, bytes, true);
  return unmapped;
}

}  // namespace

status execute(device& on, page_step& step, const segment_observers* observers) {
  if (status made = make_new(on, step); !made) return made;
  for (std::size_t k = 0; k < step.runs.size();) {
    if (!step.runs[k].moves) {
      ++k;
      continue;
    }
    const std::size_t end = end_of_stretch(step, k);
    const mapped_run& last = step.runs[end - 1].what;
    const address begin = step.runs[k].what.begin;
    const status unmapped = unmap_observed(on, begin, last.begin + last.bytes - begin, observers);
    // Until it is mapped again; what the driver did not unmap is where it was.
    for (; k < end; ++k) step.runs[k].is = unmapped ? outcome::destroyed : outcome::untouched;
    if (!unmapped) {
      undo(on, step, 0);
      return unmapped;
    }
  }
  for (std::size_t k = 0; k < step.runs.size(); ++k) {
    const page_step::run& r = step.runs[k];
    if (status mapped = on.map(r.to, r.what.bytes, r.what.pages); !mapped) {
      end_failed(on, step, k, observers);
      return mapped;
    }
  }
  for (const unbacked_piece& piece : step.pieces) {
    if (status open = on.set_access(piece.begin, piece.bytes); !open) {
      end_failed(on, step, step.runs.size(), observers);
      return open;
    }
  }
  for (page_step::run& r : step.runs) r.is = outcome::arrived;
  if (observers != nullptr) {
    for (const unbacked_piece& piece : step.pieces) observers->added(piece.begin, piece.bytes, true);
  }
  return {};
}

returned_runs return_runs(device& on, std::span<const mapped_run> runs, const segment_observers* observers) {
  returned_runs out;
  if (runs.empty()) return out;
  const mapped_run& last = runs.back();
  out.why = unmap_observed(on, runs.front().begin, last.begin + last.bytes - runs.front().begin, observers);
  out.unmapped = out.why.ok();
  if (!out.unmapped) return out;
  for (const mapped_run& run : runs) {
    status gone = on.destroy(run.pages);
    if (gone) out.destroyed += run.bytes;
    if (!gone && out.why.ok()) out.why = std::move(gone);
  }
  return out;
}

}  // namespace gpumem
