#include "remap_batch.hpp"

namespace gpumem {
namespace {

using outcome = remap_batch::outcome;

status make_new(device& gpu, remap_batch& step) {
  for (remap_batch::run& r : step.runs) {
    if (r.moves) continue;
    const result<page_run> made = gpu.create(r.source.bytes);
    if (!made) {
      step.refused_bytes = r.source.bytes;
      for (remap_batch::run& other : step.runs) {
        if (other.moves || !other.source.pages) continue;
        static_cast<void>(gpu.destroy(other.source.pages));  // the first error is the one to report
        other.source.pages = {};
      }
      return made.why();
    }
    r.source.pages = *made;
    step.made_bytes += r.source.bytes;
  }
  return {};
}

bool leaves_now(const remap_batch::run& run) { return run.moves && !run.stays_mapped; }

/// Returns the index after the last of the adjacent leaving runs that begin at index `first`.
std::size_t end_of_stretch(const remap_batch& step, std::size_t first) {
  std::size_t end = first + 1;
  while (end < step.runs.size() && leaves_now(step.runs[end]) &&
         step.runs[end].source.begin == step.runs[end - 1].source.begin + step.runs[end - 1].source.bytes) {
    ++end;
  }
  return end;
}

/// Rolls a failed step back: unmaps the first `mapped` runs, and destroys the runs that were created or unmapped.
void undo(device& gpu, remap_batch& step, std::size_t mapped) {
  for (std::size_t k = 0; k < step.runs.size(); ++k) {
    remap_batch::run& r = step.runs[k];
    if (leaves_now(r) && r.state == outcome::untouched) continue;
    const status unmapped = k < mapped ? gpu.unmap(r.target, r.source.bytes) : status{};
    if (r.stays_mapped) {
      r.state = unmapped ? outcome::untouched : outcome::lost;
      continue;
    }
    const bool gone = unmapped.ok() && gpu.destroy(r.source.pages).ok();
    r.state = gone ? outcome::destroyed : outcome::lost;
  }
}

/// Ends a failed step when unmapping is forbidden. The pool keeps each mapped run that can be made accessible.
void keep_mapped(device& gpu, remap_batch& step, std::size_t mapped, const segment_observers* observers) {
  for (std::size_t k = 0; k < step.runs.size(); ++k) {
    remap_batch::run& r = step.runs[k];
    if (k < mapped) {
      r.state = gpu.set_access(r.target, r.source.bytes) ? outcome::arrived : outcome::stranded;
      if (observers != nullptr && r.state == outcome::arrived) observers->added(r.target, r.source.bytes, true);
    } else {
      r.state = gpu.destroy(r.source.pages) ? outcome::destroyed : outcome::lost;
    }
  }
}

void end_failed(device& gpu, remap_batch& step, std::size_t mapped, const segment_observers* observers) {
  step.may_unmap ? undo(gpu, step, mapped) : keep_mapped(gpu, step, mapped, observers);
}

}  // namespace

status unmap_observed(device& gpu, address begin, std::uint64_t bytes, const segment_observers* observers) {
  if (observers != nullptr) observers->removing(begin, bytes, true);
  status unmapped = gpu.unmap(begin, bytes);
  if (observers != nullptr && !unmapped) observers->added(begin, bytes, true);
  return unmapped;
}

status execute(device& gpu, remap_batch& step, const segment_observers* observers) {
  if (status made = make_new(gpu, step); !made) return made;
  for (std::size_t k = 0; k < step.runs.size();) {
    if (!leaves_now(step.runs[k])) {
      ++k;
      continue;
    }
    const std::size_t end = end_of_stretch(step, k);
    const mapped_run& last = step.runs[end - 1].source;
    const address begin = step.runs[k].source.begin;
    const status unmapped = unmap_observed(gpu, begin, last.begin + last.bytes - begin, observers);
    // Provisional: a run that is mapped again below becomes `arrived`. Runs that stay mapped have not changed.
    for (; k < end; ++k) step.runs[k].state = unmapped ? outcome::destroyed : outcome::untouched;
    if (!unmapped) {
      undo(gpu, step, 0);
      return unmapped;
    }
  }
  for (std::size_t k = 0; k < step.runs.size(); ++k) {
    const remap_batch::run& r = step.runs[k];
    if (status mapped = gpu.map(r.target, r.source.bytes, r.source.pages); !mapped) {
      end_failed(gpu, step, k, observers);
      return mapped;
    }
  }
  for (const unbacked_piece& piece : step.pieces) {
    if (status open = gpu.set_access(piece.begin, piece.bytes); !open) {
      end_failed(gpu, step, step.runs.size(), observers);
      return open;
    }
  }
  for (remap_batch::run& r : step.runs) r.state = outcome::arrived;
  if (observers != nullptr) {
    for (const unbacked_piece& piece : step.pieces) observers->added(piece.begin, piece.bytes, true);
  }
  return {};
}

returned_runs return_runs(device& gpu, std::span<const mapped_run> runs, const segment_observers* observers) {
  returned_runs returned;
  if (runs.empty()) return returned;
  const mapped_run& last = runs.back();
  returned.why = unmap_observed(gpu, runs.front().begin, last.begin + last.bytes - runs.front().begin, observers);
  returned.unmapped = returned.why.ok();
  if (!returned.unmapped) return returned;
  for (const mapped_run& run : runs) {
    status gone = gpu.destroy(run.pages);
    if (gone) returned.destroyed += run.bytes;
    if (!gone && returned.why.ok()) returned.why = std::move(gone);
  }
  return returned;
}

}  // namespace gpumem
