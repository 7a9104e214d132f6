/// Claims about shares and limits.
///
/// Each process is a simulated card of its own, on which the memory of the other processes counts as foreign. The
/// memory of CUDA contexts and libraries is assumed, since no driver runs; each set-up states it.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "bits.hpp"
#include "card.hpp"
#include "process_budget.hpp"
#include "random_numbers.hpp"

namespace gpumem::bench {
namespace {

constexpr std::uint64_t card_bytes = 80 * gib;
constexpr std::uint64_t context_bytes = 512 * mib;  ///< assumed, of each process
constexpr std::uint64_t libraries_bytes =
    1 * gib;  ///< assumed: handles and workspaces that libraries allocate themselves
constexpr std::uint64_t headroom_bytes = 256 * mib;  ///< default of GPUMEM_HEADROOM

/// The simulated card, used if the setup names no GPU; other processes hold `foreign_bytes` of it.
sim_config card_with(std::uint64_t foreign_bytes) {
  sim_config config;
  config.capacity_bytes = card_bytes;
  config.foreign_bytes = std::min(foreign_bytes, card_bytes);
  config.referee = false;
  return config;
}

/// Allocates blocks until memory runs out, and returns their bytes. Throws on any other error.
std::uint64_t fill(allocator& memory, std::uint64_t block_bytes) {
  for (std::uint64_t allocated = 0;; allocated += block_bytes) {
    const auto got = memory.try_allocate({.bytes = block_bytes});
    if (got.code() == errc::out_of_memory) return allocated;
    need(got);
  }
}

findings leaves_the_rest(const claim_setup& setup) {
  findings found;
  std::size_t kept = 0;
  const std::array<std::string_view, 4> rows{"grab_all,limit=30%", "growth,limit=30%", "caching,limit=30%",
                                             "grab_all,limit=70%"};
  for (const std::string_view text : rows) {
    auto first = need(start_process(setup, card_with(0), text));
    const std::uint64_t allocated = fill(*first.memory, 256 * mib);
    const auto used = first.card.taken_bytes();
    const std::uint64_t limit = first.memory->devices()[0].limit_bytes;
    auto second = need(start_process(setup, card_with(used), "growth"));
    fill(*second.memory, 256 * mib);
    const auto rest = second.card.taken_bytes();
    const std::uint64_t free = first.card.free_bytes;
    kept += used <= limit && rest + used + 512 * mib >= free ? 1U : 0U;
    found.figures.push_back({{"first", text},
                             {"limit_bytes", limit},
                             {"first_holds_bytes", used},
                             {"first_allocated_bytes", allocated},
                             {"second_holds_bytes", rest},
                             {"free_at_start_bytes", free}});
  }
  found.measured = fmt::format(
      "In {} of {} cases the first program ended at its share, to the byte, and a second one got the rest, but for "
      "512 MiB at the most.",
      kept, rows.size());
  found.outcome = verdict_of(kept, rows.size());
  return found;
}

findings one_nth_each(const claim_setup& setup) {
  findings found;
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
        held += context_bytes;  // a process creates its context before it can query free memory
        auto each = start_process(setup, card_with(held), row);
        std::uint64_t got = 0;
        const auto first = each ? each->memory->try_allocate({.bytes = mib}) : result<void*>{each.why()};
        if (first.code() != errc::out_of_memory) {
          need(first);
          const auto stats = need(each->memory->stats(0));
          got = stats.reserved_bytes;
          started += 1;
          whole += got + 2 * mib >= stats.limit_bytes ? 1U : 0U;
        }
        least = std::min(least, got);
        most = std::max(most, got);
        held += got;
      }
      ++cases;
      all_fit += whole == count ? 1U : 0U;
      found.figures.push_back({{"processes", count},
                               {"fraction_of", of},
                               {"started", started},
                               {"got_all_they_asked", whole},
                               {"least_bytes", least},
                               {"most_bytes", most},
                               {"card_bytes", card_bytes},
                               {"context_bytes", context_bytes}});
    }
  }
  const auto fitting = [&](std::string_view fraction) {
    return std::count_if(found.figures.begin(), found.figures.end(), [&](const figures_json& row) {
      return row["fraction_of"] == fraction && row["got_all_they_asked"] == row["processes"];
    });
  };
  const figures_json& last = found.figures.back();
  found.measured = fmt::format(
      "All got all of their share in {} of 3 cases with a share of the total, where every process brings a context of "
      "{} as well, and "
      "in {} of 3 with a share of what is free; there, of 8 processes, the largest share is {} and the smallest {}.",
      fitting("total"), format_bytes(context_bytes), fitting("free"),
      format_bytes(last["most_bytes"].get<std::uint64_t>()), format_bytes(last["least_bytes"].get<std::uint64_t>()));
  found.outcome = verdict_of(all_fit, cases);
  return found;
}

/// Allocates `bytes` from the driver, as libraries do, outside the allocator. Charges an active account first, as the
/// preload library does for such calls. 0 if the account or the card refuses.
std::uint64_t allocate_outside(process& owner, preload::process_budget& account, std::uint64_t bytes,
                               std::vector<address>& segments) {
  if (account.active() && !account.charge(bytes)) return 0;
  const result<address> got = owner.card.gpu->alloc(bytes);
  if (!got && got.code() != errc::out_of_memory) throw experiment_failed{got.why()};
  if (got) segments.push_back(*got);
  if (!got && account.active()) account.refund(bytes);
  return got ? bytes : 0;
}

/// Runs one program with a share of the card: its context, its pool, and library allocations before and after the pool
/// is full.
void with_a_share(const claim_setup& setup, unsigned percent, std::string_view scope, figures_json& rows) {
  const std::string text = fmt::format("growth,limit={}%,limit_scope={},headroom={}", percent, scope, headroom_bytes);
  auto started = need(start_process(setup, card_with(context_bytes), text));
  const std::uint64_t limit = started.memory->devices()[0].limit_bytes;
  const auto context = started.card.simulated != nullptr ? context_bytes : started.card.context_bytes();
  preload::process_budget account;
  if (scope == "process") {
    need(account.open(started.memory.get(), limit, headroom_bytes, context, nullptr));
  }
  std::vector<address> segments;
  const auto before = allocate_outside(started, account, sized_for(started.card, libraries_bytes), segments);
  fill(*started.memory, 16 * mib);
  const auto later = allocate_outside(started, account, 256 * mib, segments);
  const auto taken = started.card.taken_bytes();
  const auto stats = need(started.memory->stats(0));
  for (const address each : segments) static_cast<void>(started.card.gpu->free(each));
  rows.push_back({{"fraction_percent", percent},
                  {"limit_scope", scope},
                  {"limit_bytes", limit},
                  {"context_bytes", context},
                  {"libraries_bytes", before},
                  {"libraries_later_bytes", later},
                  {"pool_bytes", stats.reserved_bytes},
                  {"process_bytes", taken + context}});
}

findings fraction_is_exceeded(const claim_setup& setup) {
  findings found;
  std::size_t exceeded = 0;
  std::size_t within = 0;
  constexpr std::array<unsigned, 3> shares{10, 30, 50};
  for (const unsigned percent : shares) {
    for (const std::string_view scope : {"pool", "process"}) {
      with_a_share(setup, percent, scope, found.figures);
      const figures_json& row = found.figures.back();
      const bool exceeds = row["process_bytes"].get<std::uint64_t>() > row["limit_bytes"].get<std::uint64_t>();
      exceeded += scope == "pool" && exceeds ? 1U : 0U;
      within += scope == "process" && !exceeds ? 1U : 0U;
    }
  }
  const figures_json& last = found.figures[found.figures.size() - 2];
  found.measured = fmt::format(
      "TensorFlow's way, which GPUMEM_LIMIT_SCOPE=pool is, the process exceeded its share in {} of {} cases, with {} "
      "of "
      "a limit of {} in the last. Under GPUMEM_LIMIT_SCOPE=process it stayed within in {} of {}: library allocations "
      "outside the pool are refused if they do not fit.",
      exceeded, shares.size(), format_bytes(last["process_bytes"].get<std::uint64_t>()),
      format_bytes(last["limit_bytes"].get<std::uint64_t>()), within, shares.size());
  found.outcome = verdict_of(exceeded, shares.size());
  return found;
}

findings byte_limit(const claim_setup& setup) {
  findings found;
  std::size_t kept = 0;
  constexpr std::array<std::string_view, 4> policies{"growth", "caching", "grab_all", "hard_cap"};
  for (const std::string_view policy : policies) {
    auto card = need(open_card(setup, card_with(0)));
    const std::uint64_t limit = sized_for(card, 4 * gib);
    const std::string text = fmt::format("{},limit={}", policy, limit);
    auto started = need(start_process(setup, card_with(0), text));
    random_numbers random{setup.replay.seed};
    std::vector<void*> blocks;
    std::size_t refused = 0;
    std::size_t for_the_limit = 0;
    std::uint64_t first = 0;
    std::uint64_t most = 0;
    for (int i = 0; i < 20'000; ++i) {
      oom_report why;
      const auto got = started.memory->try_allocate({.bytes = 1 + random.below(64 * mib)}, &why);
      const auto taken = started.card.taken_bytes();
      if (first == 0) first = taken;
      most = std::max(most, taken);
      if (got) {
        blocks.push_back(*got);
        if (random.below(4) != 0) continue;
      } else {
        ++refused;
        // After everything is taken, a request can also fail by fragmentation.
        for_the_limit += why.cause == oom_cause::limit || why.cause == oom_cause::fragmentation ? 1U : 0U;
      }
      if (blocks.empty()) continue;
      std::swap(blocks[random.below(blocks.size())], blocks.back());
      started.memory->deallocate(blocks.back());
      blocks.pop_back();
    }
    if (started.card.simulated != nullptr)
      most = started.card.simulated->peak_used_bytes();  // includes peaks within a request
    kept += most <= limit && refused > 0 && refused == for_the_limit ? 1U : 0U;
    found.figures.push_back({{"policy", policy},
                             {"limit_bytes", limit},
                             {"first_taken_bytes", first},
                             {"most_taken_bytes", most},
                             {"requests_refused", refused},
                             {"refused_for_limit_or_fragmentation", for_the_limit}});
  }
  found.measured = fmt::format(
      "In 20,000 requests of up to 64 MiB, {} of {} policies never took a byte over {} and refused with the limit, or "
      "what is free in pieces, as the cause. growth with the limit began with {}.",
      kept, policies.size(), format_bytes(found.figures[0]["limit_bytes"].get<std::uint64_t>()),
      format_bytes(found.figures[0]["first_taken_bytes"].get<std::uint64_t>()));
  found.outcome = verdict_of(kept, policies.size());
  return found;
}

}  // namespace

std::vector<claim> limit_claims() {
  return {
      {.id = "fraction-leaves-the-rest",
       .statement = "A program with a fraction leaves the rest of the card to others.",
       .source = "TensorFlow 1.x, guide \"Using GPUs\", "
                 "[per_process_gpu_memory_fraction](https://github.com/tensorflow/tensorflow/blob/v1.15.0/tensorflow/"
                 "core/protobuf/config.proto).",
       .experiment = "A simulated card of 80 GiB: a program with 30 % or 70 % allocates blocks of 256 MiB until it is "
                     "refused, then a "
                     "second one without a limit does. It holds where the first stays within its share and the second "
                     "gets all but at "
                     "most 512 MiB of the rest.",
       .expected = "Holds under every policy.",
       .run = leaves_the_rest,
       .on_card = "Both programs are allocators of one process on the card; the rest is of what was free."},
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
       .source = "TensorFlow issues [30039](https://github.com/tensorflow/tensorflow/issues/30039), "
                 "[22158](https://github.com/tensorflow/tensorflow/issues/22158) and "
                 "[53822](https://github.com/tensorflow/tensorflow/issues/53822): nvidia-smi shows more than the "
                 "fraction.",
       .experiment =
           "Growth with 10, 30 and 50 % of a simulated card of 80 GiB. The process has a context of 512 MiB, its "
           "libraries take 1 GiB from the driver (both assumed), it fills its pool, and then libraries ask for 256 MiB "
           "more. Once with GPUMEM_LIMIT_SCOPE=pool, TensorFlow's way, once with process: the account that a preloaded "
           "program is held to, with the usual headroom. It holds where the process exceeds its share with the pool "
           "alone limited.",
       .expected = "Exceeded by 1.75 GiB; not with a limit on the process.",
       .run = fraction_is_exceeded,
       .on_card =
           "On the card the context is what NVML says it is, and libraries first take at most an eighth of what is "
           "free."},
      {.id = "byte-limit-is-exact",
       .statement = "With a limit in bytes, a program gets an error beyond it and never a byte more; growth and a "
                    "limit combine.",
       .source = "TensorFlow, [guide \"Use a GPU\"](https://www.tensorflow.org/guide/gpu), "
                 "LogicalDeviceConfiguration(memory_limit); there it excludes memory growth (issue "
                 "[38367](https://github.com/tensorflow/tensorflow/issues/38367)).",
       .experiment =
           "20,000 requests of random size up to 64 MiB, with frees between, under four policies with limit=4GiB. It "
           "holds "
           "where the most taken from the device is at most 4 GiB and every refusal names the limit or fragmentation.",
       .expected = "Holds under every policy.",
       .run = byte_limit,
       .on_card = "The limit is 4 GiB or an eighth of what is free on the card, whichever is less."}};
}

}  // namespace gpumem::bench
