/// Claims about shares and limits.
///
/// A process is a simulated card of its own on which what the other processes hold counts as foreign memory. What the
/// CUDA context and libraries take outside of an allocator is assumed, and stands in every set-up: nothing here is a
/// driver.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "bits.hpp"
#include "claim.hpp"
#include "gpumem/settings.hpp"
#include "random_numbers.hpp"

namespace gpumem::bench {
namespace {

constexpr std::uint64_t card_bytes = 80 * gib;
constexpr std::uint64_t context_bytes = 512 * mib;  ///< assumed, of each process
constexpr std::uint64_t libraries_bytes =
    1 * gib;  ///< assumed: handles and workspaces that libraries allocate themselves

struct process {
  std::unique_ptr<sim_device> card;
  std::unique_ptr<allocator> memory;
};

result<process> start_process(std::string_view row_text, std::uint64_t foreign_bytes) {
  const auto row = plain_row(row_text);
  if (!row) return row.why();
  sim_config config;
  config.capacity_bytes = card_bytes;
  config.foreign_bytes = std::min(foreign_bytes, card_bytes);
  config.referee = false;
  auto opened = open_rig(config, row->with);
  if (!opened) return opened.why();
  return process{std::move(opened->on), std::move(opened->over)};
}

result<findings> leaves_the_rest(const claim_setup& /*setup*/) {
  findings out;
  std::size_t kept = 0;
  const std::array<std::string_view, 4> rows{"grab_all,limit=30%", "growth,limit=30%", "caching,limit=30%",
                                             "grab_all,limit=70%"};
  for (const std::string_view text : rows) {
    auto first = start_process(text, 0);
    if (!first) return first.why();
    std::uint64_t taken = 0;
    while (first->memory->try_allocate({.bytes = 256 * mib}).ok()) taken += 256 * mib;
    const std::uint64_t used = first->card->used_bytes();
    const std::uint64_t limit = first->memory->devices()[0].limit_bytes;
    auto second = start_process("growth", used);
    if (!second) return second.why();
    while (second->memory->try_allocate({.bytes = 256 * mib}).ok()) {
    }
    const std::uint64_t rest = second->card->used_bytes();
    kept += used <= limit && rest + used + 512 * mib >= card_bytes ? 1U : 0U;
    out.figures.push_back({{"first", text},
                           {"limit_bytes", limit},
                           {"first_holds_bytes", used},
                           {"first_allocated_bytes", taken},
                           {"second_holds_bytes", rest},
                           {"card_bytes", card_bytes}});
  }
  out.measured = fmt::format(
      "In {} of {} cases the first program ended at its share, to the byte, and a second one got the rest, but for "
      "512 MiB at the most.",
      kept, rows.size());
  out.outcome = verdict_of(kept, rows.size());
  return out;
}

result<findings> one_nth_each(const claim_setup& /*setup*/) {
  findings out;
  std::size_t cases = 0;
  std::size_t all_fit = 0;
  for (const std::size_t count : {2U, 4U, 8U}) {
    for (const std::string_view of : {"total", "free"}) {
      const std::string row =
          fmt::format("grab_all,limit={:.10g}%{}", 100.0 / static_cast<double>(count), of == "free" ? "free" : "");
      std::uint64_t held = 0;
      std::uint64_t least = card_bytes;
      std::uint64_t most = 0;
      std::size_t whole = 0;
      std::size_t started = 0;
      for (std::size_t i = 0; i < count; ++i) {
        held += context_bytes;  // before the process can ask how much is free
        auto each = start_process(row, held);
        std::uint64_t got = 0;
        if (each && each->memory->try_allocate({.bytes = mib}).ok()) {
          const auto stats = each->memory->stats(0);
          if (!stats) return stats.why();
          got = stats->reserved_bytes;
          started += 1;
          whole += got + 2 * mib >= stats->limit_bytes ? 1U : 0U;
        }
        least = std::min(least, got);
        most = std::max(most, got);
        held += got;
      }
      ++cases;
      all_fit += whole == count ? 1U : 0U;
      out.figures.push_back({{"processes", count},
                             {"fraction_of", of},
                             {"started", started},
                             {"got_all_they_asked", whole},
                             {"least_bytes", least},
                             {"most_bytes", most},
                             {"card_bytes", card_bytes},
                             {"context_bytes", context_bytes}});
    }
  }
  const auto fitting = [&](std::string_view of) {
    return std::count_if(out.figures.begin(), out.figures.end(), [&](const figures_json& row) {
      return row["fraction_of"] == of && row["got_all_they_asked"] == row["processes"];
    });
  };
  const figures_json& last = out.figures.back();
  out.measured = fmt::format(
      "All got all of their share in {} of 3 cases with a share of the total, where every process brings a context of "
      "{} as well, and "
      "in {} of 3 with a share of what is free; there, of 8 processes, the largest share is {} and the smallest {}.",
      fitting("total"), format_bytes(context_bytes), fitting("free"),
      format_bytes(last["most_bytes"].get<std::uint64_t>()), format_bytes(last["least_bytes"].get<std::uint64_t>()));
  out.outcome = verdict_of(all_fit, cases);
  return out;
}

bool has_option(std::string_view name) {
  const std::vector<option_row>& all = option_table();
  return std::any_of(all.begin(), all.end(), [&](const option_row& each) { return each.option == name; });
}

result<findings> fraction_is_exceeded(const claim_setup& /*setup*/) {
  findings out;
  std::size_t exceeded = 0;
  std::size_t exact = 0;
  constexpr std::array<std::uint64_t, 3> shares{10, 30, 50};
  for (const std::uint64_t percent : shares) {
    for (const bool deducted : {false, true}) {
      auto one = start_process(fmt::format("growth,limit={}%", percent), context_bytes);
      if (!one) return one.why();
      const std::uint64_t limit = one->memory->devices()[0].limit_bytes;
      if (!one->card->alloc(libraries_bytes)) return status{errc::device_error, "no memory for the libraries"};
      if (deducted) {
        if (auto set = one->memory->set_limit(0, limit - context_bytes - libraries_bytes); !set) return set.why();
      }
      while (one->memory->try_allocate({.bytes = 16 * mib}).ok()) {
      }
      const std::uint64_t process_bytes = one->card->used_bytes() + context_bytes;
      const std::uint64_t pool_bytes = one->card->used_bytes() - libraries_bytes;
      (deducted ? exact : exceeded) += (deducted ? process_bytes <= limit : process_bytes > limit) ? 1U : 0U;
      out.figures.push_back({{"fraction_percent", percent},
                             {"way", deducted ? "all of the process" : "the pool alone"},
                             {"limit_bytes", limit},
                             {"pool_bytes", pool_bytes},
                             {"process_bytes", process_bytes}});
    }
  }
  out.measured = fmt::format(
      "With the pool alone limited, the process exceeded its share in {} of {} cases, by the context and the "
      "libraries. With these deducted{}, it stayed within in {} of {}.",
      exceeded, shares.size(), has_option("limit_scope") ? ", as GPUMEM_LIMIT_SCOPE=process does" : "", exact,
      shares.size());
  out.outcome = verdict_of(exceeded, shares.size());
  return out;
}

result<findings> byte_limit(const claim_setup& setup) {
  findings out;
  std::size_t kept = 0;
  const std::array<std::string_view, 4> rows{"growth,limit=4GiB", "caching,limit=4GiB", "grab_all,limit=4GiB",
                                             "hard_cap,limit=4GiB"};
  for (const std::string_view text : rows) {
    auto one = start_process(text, 0);
    if (!one) return one.why();
    random_numbers random{setup.replay.seed};
    std::vector<void*> blocks;
    std::size_t refused = 0;
    std::size_t for_the_limit = 0;
    std::uint64_t first = 0;
    for (int i = 0; i < 20'000; ++i) {
      oom_report why;
      const auto got = one->memory->try_allocate({.bytes = 1 + random.below(64 * mib)}, &why);
      if (first == 0) first = one->card->used_bytes();
      if (got) {
        blocks.push_back(*got);
        if (random.below(4) != 0) continue;
      } else {
        ++refused;
        // Once all is taken, a request can also fail because what is free is in pieces.
        for_the_limit += why.cause == oom_cause::limit || why.cause == oom_cause::fragmentation ? 1U : 0U;
      }
      if (blocks.empty()) continue;
      std::swap(blocks[random.below(blocks.size())], blocks.back());
      one->memory->deallocate(blocks.back());
      blocks.pop_back();
    }
    const std::uint64_t most = one->card->peak_used_bytes();
    kept += most <= 4 * gib && refused > 0 && refused == for_the_limit ? 1U : 0U;
    out.figures.push_back({{"policy", text},
                           {"limit_bytes", 4 * gib},
                           {"first_taken_bytes", first},
                           {"most_taken_bytes", most},
                           {"requests_refused", refused},
                           {"refused_for_limit_or_fragmentation", for_the_limit}});
  }
  out.measured = fmt::format(
      "In 20,000 requests of up to 64 MiB, {} of {} policies never took a byte over 4 GiB and refused with the limit, "
      "or what is free "
      "in pieces, as the cause. growth with the limit began with {}.",
      kept, rows.size(), format_bytes(out.figures[0]["first_taken_bytes"].get<std::uint64_t>()));
  out.outcome = verdict_of(kept, rows.size());
  return out;
}

}  // namespace

std::vector<claim> limit_claims() {
  return {
      {.id = "fraction-leaves-the-rest",
       .statement = "A program with a fraction leaves the rest of the card to others.",
       .source = "TensorFlow 1.x, guide \"Using GPUs\", per_process_gpu_memory_fraction.",
       .experiment = "A simulated card of 80 GiB: a program with 30 % or 70 % allocates blocks of 256 MiB until it is "
                     "refused, then a "
                     "second one without a limit does. It holds where the first stays within its share and the second "
                     "gets all but at "
                     "most 512 MiB of the rest.",
       .expected = "Holds under every policy.",
       .run = leaves_the_rest},
      {.id = "one-nth-each",
       .statement = "N processes that take 1/N of the card each all fit.",
       .source = "Common advice for several processes on one GPU.",
       .experiment = "2, 4 and 8 processes start one after the other on a simulated card of 80 GiB with grab_all and "
                     "1/N of the total "
                     "or of what is free. Each has a context of 512 MiB (assumed). It holds where every process gets "
                     "all of its share.",
       .expected = "Of the total: no. Of what is free: yes, in unequal shares.",
       .run = one_nth_each},
      {.id = "fraction-is-exceeded",
       .statement = "A fraction is exceeded in practice, since it binds the pool and not the process.",
       .source = "TensorFlow issues 30039, 22158 and 53822: nvidia-smi shows more than the fraction.",
       .experiment = "Growth with 10, 30 and 50 % of a simulated card of 80 GiB, filled up; the process also has a "
                     "context of 512 MiB and "
                     "libraries with 1 GiB (both assumed). Once the pool alone is limited, once the rest is deducted "
                     "from the limit. It "
                     "holds where the process exceeds its share with the pool alone limited.",
       .expected = "Exceeded by 1.5 GiB; not with the rest deducted.",
       .run = fraction_is_exceeded},
      {.id = "byte-limit-is-exact",
       .statement = "With a limit in bytes, a program gets an error beyond it and never a byte more; growth and a "
                    "limit combine.",
       .source = "TensorFlow, guide \"Use a GPU\", LogicalDeviceConfiguration(memory_limit); there it excludes memory "
                 "growth (issue 38367).",
       .experiment =
           "20,000 requests of random size up to 64 MiB, with frees between, under four policies with limit=4GiB. It "
           "holds "
           "where the most taken from the device is at most 4 GiB and every refusal names the limit or fragmentation.",
       .expected = "Holds under every policy.",
       .run = byte_limit}};
}

}  // namespace gpumem::bench
