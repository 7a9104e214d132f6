/// Training: weights and optimiser states stay, activations accumulate in the forward pass and are freed in the
/// backward pass, with gradients and workspaces in between.
#include <algorithm>

#include "workload.hpp"

namespace gpumem::bench {
namespace {

constexpr unsigned layers = 12;
constexpr std::uint64_t longest = 64;  ///< length of a sequence, in steps of 16 tokens

/// A network whose step with the longest sequence reaches about the requested peak.
class network {
 public:
  network(const workload_shape& shape, trace_builder& builder, std::uint16_t stream)
      : builder_{builder}, stream_{stream} {
    // Weights and two optimiser states take a third, the activations of the longest batch half, tensors in flight the
    // rest.
    weight_bytes_ = shape.peak_bytes / 9 / layers;
    token_bytes_ = std::max<std::uint64_t>(shape.peak_bytes / 2 / layers / longest / 6, 1);
    for (unsigned i = 0; i < 3 * layers; ++i) builder_.allocate(weight_bytes_, stream_);
  }

  /// One step of `length` (1 to `longest`) with six tensors per layer. The attention's tensor grows faster than others.
  void train(std::uint64_t length) {
    std::vector<std::vector<std::uint32_t>> kept(layers);
    for (auto& layer : kept) {
      const std::uint32_t workspace = builder_.allocate(2 * token_bytes_ * length + 4096, stream_);
      for (const std::uint64_t part : {1U, 1U, 2U, 1U})
        layer.push_back(builder_.allocate(part * token_bytes_ * length, stream_));
      layer.push_back(builder_.allocate(token_bytes_ * length * length / longest, stream_));
      builder_.free(workspace);
    }
    const std::uint32_t loss = builder_.allocate(512, stream_);
    std::vector<std::uint32_t> gradients;
    for (; !kept.empty(); kept.pop_back()) {
      std::vector<std::uint32_t>& layer = kept.back();
      const std::uint32_t flow = builder_.allocate(2 * token_bytes_ * length, stream_);
      gradients.push_back(builder_.allocate(weight_bytes_ / 4, stream_));
      for (; !layer.empty(); layer.pop_back()) builder_.free(layer.back());
      builder_.free(flow);
    }
    builder_.free(loss);
    for (const std::uint32_t each : gradients) {
      const std::uint32_t update = builder_.allocate(weight_bytes_ / 4, stream_);
      builder_.free(each);
      builder_.free(update);
    }
  }

  /// An evaluation step: outputs are kept until the batch is done, nothing is kept for a backward pass.
  void evaluate(std::uint64_t length, unsigned batches) {
    std::vector<std::uint32_t> outputs;
    for (unsigned batch = 0; batch < batches; ++batch) {
      std::uint32_t before = builder_.allocate(4 * token_bytes_ * length, stream_);
      for (unsigned layer = 0; layer < layers; ++layer) {
        const std::uint32_t wide = builder_.allocate(8 * token_bytes_ * length, stream_);
        const std::uint32_t after = builder_.allocate(4 * token_bytes_ * length, stream_);
        builder_.free(wide);
        builder_.free(before);
        before = after;
      }
      outputs.push_back(builder_.allocate(token_bytes_ * length / 8 + 512, stream_));
      builder_.free(before);
    }
    for (const std::uint32_t each : outputs) builder_.free(each);
  }

 private:
  trace_builder& builder_;
  std::uint16_t stream_;
  std::uint64_t weight_bytes_ = 0;
  std::uint64_t token_bytes_ = 0;
};

}  // namespace

/// Ragged batches: most are short, a few long.
trace training_workload(const workload_shape& shape) {
  random_numbers random{shape.seed};
  trace_builder builder;
  network net{shape, builder, 0};
  while (builder.ops() < shape.ops) {
    const double share = random.share();
    net.train(1 + static_cast<std::uint64_t>(share * share * longest));
  }
  return std::move(builder).done("training");
}

/// Eight epochs with growing sequence lengths (a curriculum), each followed by an evaluation.
trace epochs_workload(const workload_shape& shape) {
  constexpr std::uint64_t epochs = 8;
  random_numbers random{shape.seed};
  trace_builder builder;
  network net{shape, builder, 0};
  for (std::uint64_t epoch = 1; epoch <= epochs; ++epoch) {
    const std::uint64_t length = longest * epoch / epochs;
    do {
      net.train(length - random.below(2));
    } while (builder.ops() < shape.ops * epoch / epochs);
    net.evaluate(1 + longest * (epochs + 1 - epoch) / epochs / 2, 8);
  }
  return std::move(builder).done("epochs");
}

}  // namespace gpumem::bench
