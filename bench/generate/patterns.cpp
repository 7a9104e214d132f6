#include "patterns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "bits.hpp"
#include "workload.hpp"

namespace gpumem::bench {
namespace {

using blocks = std::vector<std::uint32_t>;

struct pattern_run {
  trace_builder builder;
  random_numbers& random;
  std::uint64_t unit_bytes;  ///< scale of the program's sizes
  std::uint64_t ops;

  /// `unit_bytes` times `least` to `most` percent.
  [[nodiscard]] std::uint64_t share(std::uint64_t least, std::uint64_t most) {
    return std::max<std::uint64_t>(unit_bytes / 100 * (least + random.below(most - least + 1)), 512);
  }
  [[nodiscard]] bool more() const { return builder.ops() < ops; }
  void free_all(blocks& kept) {
    for (const std::uint32_t each : kept) builder.free(each);
    kept.clear();
  }
};

/// A scratch block comes and goes; outputs that stay are made while it is free (httomo#667).
void scratch(pattern_run& run) {
  blocks outputs;
  while (run.more()) {
    run.builder.free(run.builder.allocate(run.unit_bytes));
    outputs.push_back(run.builder.allocate(run.share(1, 6)));
    run.builder.wait_for_device();
    if (outputs.size() > 40) run.free_all(outputs);
  }
}

/// Each step has one large tensor of another size; small ones of every step stay for a while (pytorch#35901).
void large_among_small(pattern_run& run) {
  blocks small;
  while (run.more()) {
    run.builder.free(run.builder.allocate(run.share(60, 100)));
    for (int k = 0; k < 4; ++k) small.push_back(run.builder.allocate(run.share(0, 1)));
    run.builder.wait_for_device();
    if (small.size() > 400) run.free_all(small);
  }
}

/// Two tensors go and one of their sum comes, in turn (DeepSpeed#1611).
void two_then_one(pattern_run& run) {
  while (run.more()) {
    blocks halves{run.builder.allocate(run.unit_bytes / 2), run.builder.allocate(run.unit_bytes / 2)};
    run.free_all(halves);
    run.builder.wait_for_device();
    run.builder.free(run.builder.allocate(run.unit_bytes));
  }
}

/// Every layer is replaced by one that is 5 % larger, a few times (vllm#49151).
void replaced_layers(pattern_run& run) {
  while (run.more()) {
    blocks layers;
    std::uint64_t bytes = run.unit_bytes / 16;
    for (int k = 0; k < 24; ++k) layers.push_back(run.builder.allocate(bytes));
    for (int version = 0; version < 4; ++version) {
      bytes += bytes / 20;
      for (std::uint32_t& each : layers) {
        run.builder.free(each);
        run.builder.wait_for_device();  // reads a file
        each = run.builder.allocate(bytes);
      }
    }
    run.free_all(layers);
  }
}

/// A model that stays, and adapters of several ranks that come and go with their requests.
void adapters(pattern_run& run) {
  for (int k = 0; k < 16; ++k) run.builder.allocate(run.unit_bytes / 4);
  constexpr std::array<std::uint64_t, 5> ranks{4, 8, 16, 32, 64};
  std::vector<blocks> loaded;
  while (run.more()) {
    if (loaded.size() > 3 + run.random.below(6)) {
      const std::size_t gone = run.random.below(loaded.size());
      run.free_all(loaded[gone]);
      loaded.erase(loaded.begin() + static_cast<std::ptrdiff_t>(gone));
    }
    run.builder.wait_for_device();  // reads a file
    const std::uint64_t bytes =
        std::max<std::uint64_t>(run.unit_bytes / 4096 * ranks[run.random.below(ranks.size())], 512);
    blocks& adapter = loaded.emplace_back();
    for (int k = 0; k < 32; ++k) adapter.push_back(run.builder.allocate(bytes));
    run.builder.wait_for_device();  // a copy from pageable memory returns when it is done
    blocks activations;
    const std::uint64_t tokens = run.share(2, 40);
    for (int k = 0; k < 16; ++k) activations.push_back(run.builder.allocate(k % 2 == 0 ? tokens : tokens / 4 + 512));
    run.free_all(activations);
    run.builder.wait_for_device();  // reads the token
  }
}

/// Images of another size in each batch: a pyramid of features that halves its sides, kept until the end of the step.
void image_sizes(pattern_run& run) {
  for (int k = 0; k < 32; ++k) run.builder.allocate(run.unit_bytes / 32);
  while (run.more()) {
    blocks features;
    for (std::uint64_t bytes = run.share(10, 100); bytes > run.unit_bytes / 1024 + 512; bytes /= 2) {
      const std::uint32_t workspace = run.builder.allocate(bytes / 2 * 3);
      for (int k = 0; k < 3; ++k) features.push_back(run.builder.allocate(bytes));
      run.builder.free(workspace);
    }
    run.free_all(features);
    run.builder.wait_for_device();  // reads the loss
  }
}

/// Serving with continuous batching and caches that grow by copying: each step adds a token to every request, requests
/// end at random, and a new one first runs its whole prompt.
void batching(pattern_run& run) {
  struct request {
    std::uint64_t tokens;
    std::uint64_t last;
    blocks cache;
  };
  constexpr std::size_t layers = 8;
  constexpr std::uint64_t tokens_a_copy = 64;
  for (std::size_t k = 0; k < 4 * layers; ++k) run.builder.allocate(run.unit_bytes / 8);
  const std::uint64_t token_bytes = std::max<std::uint64_t>(run.unit_bytes / 4096, 512);
  std::vector<request> active;
  while (run.more()) {
    if (active.size() < 8 && run.random.below(4) == 0) {
      const std::uint64_t prompt = 64 + run.random.below(1024);
      request fresh{.tokens = prompt, .last = prompt + 64 + run.random.below(512), .cache = {}};
      const std::uint32_t hidden = run.builder.allocate(prompt * token_bytes * 4);
      for (std::size_t k = 0; k < layers; ++k) fresh.cache.push_back(run.builder.allocate(prompt * token_bytes));
      run.builder.free(hidden);
      active.push_back(std::move(fresh));
    }
    for (request& each : active) {
      each.tokens += tokens_a_copy;
      for (std::uint32_t& cache : each.cache) {
        const std::uint32_t longer = run.builder.allocate(each.tokens * token_bytes);
        run.builder.free(cache);
        cache = longer;
      }
      if (each.tokens >= each.last) run.free_all(each.cache);
    }
    std::erase_if(active, [](const request& each) { return each.cache.empty(); });
    run.builder.wait_for_device();  // reads the tokens
  }
}

struct pattern {
  std::string_view name;
  void (*run)(pattern_run&);
};
constexpr std::array<pattern, 7> patterns{{{"scratch", scratch},
                                           {"largesmall", large_among_small},
                                           {"twoone", two_then_one},
                                           {"replaced", replaced_layers},
                                           {"adapters", adapters},
                                           {"images", image_sizes},
                                           {"batching", batching}}};

}  // namespace

trace draw_pattern(std::uint64_t ops, random_numbers& random) {
  const pattern& drawn = patterns.at(random.below(patterns.size()));
  const std::uint64_t unit_mib = 64 + random.below(2048);
  pattern_run run{.builder = trace_builder{}, .random = random, .unit_bytes = unit_mib * mib, .ops = ops};
  drawn.run(run);
  return std::move(run.builder).done(fmt::format("{}-{}MiB", drawn.name, unit_mib));
}

}  // namespace gpumem::bench
