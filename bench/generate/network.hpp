/// A network of a given shape, as the allocations of a program that trains or serves it.
#pragma once

#include <cstdint>
#include <string>

#include "random_numbers.hpp"
#include "trace.hpp"
#include "workload.hpp"

namespace gpumem::bench {

/// The peak of live bytes of a generated program, at most: it fits a card of 80 GiB.
constexpr std::uint64_t most_generated_bytes = std::uint64_t{64} << 30;

enum class model_kind : std::uint8_t { transformer, moe, conv, recurrent };
enum class optimiser_kind : std::uint8_t { sgd, momentum, adam, adafactor };
enum class parallel_kind : std::uint8_t { none, data, tensor, pipeline };

struct network_shape {
  model_kind model = model_kind::transformer;
  optimiser_kind optimiser = optimiser_kind::adam;
  parallel_kind parallel = parallel_kind::none;
  unsigned ways = 1;  ///< `tensor`: shards; `pipeline`: micro-batches in flight
  unsigned layers = 12;
  std::uint64_t width = 768;
  std::uint64_t batch = 8;
  std::uint64_t length = 512;       ///< tokens; for `conv`, pixels on a side
  std::uint64_t element_bytes = 4;  ///< size of an activation's element
  bool ragged = false;              ///< every batch has a different length
  bool checkpoints = false;         ///< recomputes the activations within a layer
  unsigned evaluate_every = 0;      ///< steps; 0: never
  [[nodiscard]] std::string text() const;
};

/// Draws a network that fits a card of 80 GiB.
network_shape draw_network(random_numbers& random);

/// Allocates weights and optimiser states, then adds whole steps until `ops` operations are reached.
trace train(const network_shape& shape, std::uint64_t ops, random_numbers& random);

}  // namespace gpumem::bench
