/// Sizes follow common implementations: a transformer layer keeps some 16 tensors of tokens x width and its attention
/// scores, a convolution its input and output, an expert its share of the tokens.
#include "network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace gpumem::bench {
namespace {

constexpr std::uint64_t least_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t bucket_bytes = std::uint64_t{25} << 20;  // gradients that are reduced together
constexpr std::uint16_t compute = 0;
constexpr std::uint16_t communicate = 1;

template <typename value, std::size_t count>
value pick(random_numbers& random, const std::array<value, count>& of) {
  return of[random.below(count)];
}

/// Bytes of a layer: its weights, and the tensors of one batch.
struct layer_bytes {
  std::vector<std::uint64_t> weights;
  std::vector<std::uint64_t> kept;  ///< from the forward to the backward pass
  std::uint64_t workspace = 0;
};

class network {
 public:
  network(const network_shape& shape, random_numbers& random)
      : shape_{shape}, random_{random}, builder_{shape.parallel == parallel_kind::none ? 1U : 2U} {}

  [[nodiscard]] layer_bytes layer(unsigned index, std::uint64_t length) {
    switch (shape_.model) {
      case model_kind::transformer:
        return transformer_layer(length);
      case model_kind::moe:
        return moe_layer(length);
      case model_kind::conv:
        return conv_layer(index, length);
      case model_kind::recurrent:
        break;
    }
    return recurrent_layer(length);
  }

  void set_up() {
    for (unsigned i = 0; i < shape_.layers; ++i) {
      for (const std::uint64_t bytes : layer(i, shape_.length).weights) {
        builder_.allocate(bytes);
        weights_.push_back(bytes);
        weights_of_.push_back(i);
      }
    }
    states();
  }

  void step(std::uint64_t number) {
    const std::uint64_t length = shape_.ragged ? ragged_length() : shape_.length;
    const unsigned flights = shape_.parallel == parallel_kind::pipeline ? shape_.ways : 1;
    gradients_.assign(weights_.size(), none);
    std::vector<std::vector<std::vector<std::uint32_t>>> in_flight;
    for (unsigned k = 0; k < flights; ++k) in_flight.push_back(forward(length));
    for (auto& kept : in_flight) backward(length, kept);
    update();
    builder_.wait_for_device();  // reads the loss
    if (shape_.evaluate_every != 0 && number % shape_.evaluate_every == 0)
      evaluate(std::max<std::uint64_t>(length / 2, 1));
  }

  [[nodiscard]] std::uint64_t ops() const { return builder_.ops(); }
  trace done(std::string name) && { return std::move(builder_).done(std::move(name)); }

 private:
  static constexpr std::uint32_t none = UINT32_MAX;

  [[nodiscard]] std::uint64_t shards() const { return shape_.parallel == parallel_kind::tensor ? shape_.ways : 1; }
  [[nodiscard]] std::uint64_t tokens(std::uint64_t length) const { return shape_.batch * length; }

  layer_bytes transformer_layer(std::uint64_t length) const {
    const std::uint64_t w = shape_.width;
    const std::uint64_t e = shape_.element_bytes;
    const std::uint64_t t = tokens(length);
    layer_bytes layer;
    layer.weights = {3 * w * w * 4 / shards(),
                     w * w * 4 / shards(),
                     4 * w * w * 4 / shards(),
                     4 * w * w * 4 / shards(),
                     w * 8,
                     w * 8};
    layer.kept = {t * w * e,
                  3 * t * w * e / shards(),
                  t * w * e / shards(),
                  t * w * e,
                  4 * t * w * e / shards(),
                  4 * t * w * e / shards(),
                  t * w * e,
                  t * w};
    layer.kept.push_back(shape_.batch * std::max<std::uint64_t>(w / 64 / shards(), 1) * length * length * e);
    layer.workspace = 2 * t * w * e / shards() + 8192;
    return layer;
  }

  /// Each expert gets a different share of the tokens in every step.
  layer_bytes moe_layer(std::uint64_t length) {
    layer_bytes layer = transformer_layer(length);
    constexpr std::uint64_t experts = 8;
    const std::uint64_t w = shape_.width;
    layer.kept.erase(layer.kept.begin() + 4, layer.kept.begin() + 6);
    for (std::uint64_t k = 0; k < experts; ++k) {
      if (k > 0) layer.weights.push_back(8 * w * w * 4 / experts / shards());
      const auto share = static_cast<std::uint64_t>(static_cast<double>(2 * tokens(length) / experts) *
                                                    (0.25 + 1.5 * random_.share()));
      layer.kept.push_back(std::max<std::uint64_t>(share, 1) * w * shape_.element_bytes);
      layer.kept.push_back(std::max<std::uint64_t>(share, 1) * 4 * w * shape_.element_bytes / shards());
    }
    return layer;
  }

  /// Each further third of the layers halves the side and doubles the channels.
  layer_bytes conv_layer(unsigned index, std::uint64_t side) const {
    const unsigned third = std::max(shape_.layers / 3, 1U);
    const unsigned depth = index < third ? 0 : index < 2 * third ? 1 : 2;
    const std::uint64_t channels = (shape_.width / 8) << depth;
    const std::uint64_t s = std::max<std::uint64_t>(side >> depth, 1);
    const std::uint64_t image = shape_.batch * channels * s * s * shape_.element_bytes;
    layer_bytes layer;
    layer.weights = {channels * channels * 9 * 4, channels * 8};
    layer.kept = {image, image, image / 4 + 512};
    layer.workspace = std::min<std::uint64_t>(image * 9 / 4, std::uint64_t{256} << 20) + 4096;
    return layer;
  }

  /// Each token is a step: many small tensors.
  layer_bytes recurrent_layer(std::uint64_t length) const {
    const std::uint64_t state = shape_.batch * shape_.width * shape_.element_bytes;
    layer_bytes layer;
    layer.weights = {8 * shape_.width * shape_.width * 4, shape_.width * 16};
    layer.kept.assign(std::min<std::uint64_t>(length, 48), 4 * state);
    layer.kept.push_back(state * length);
    layer.workspace = 8 * state + 4096;
    return layer;
  }

  void states() {
    const unsigned copies = shape_.optimiser == optimiser_kind::adam       ? 2
                            : shape_.optimiser == optimiser_kind::momentum ? 1
                                                                           : 0;
    for (unsigned k = 0; k < copies; ++k) {
      for (const std::uint64_t bytes : weights_) builder_.allocate(bytes);
    }
    if (shape_.optimiser != optimiser_kind::adafactor) return;
    for (const std::uint64_t bytes : weights_) {
      const auto side = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(bytes / 4)));
      builder_.allocate(std::max<std::uint64_t>(4 * side, 4));
      builder_.allocate(std::max<std::uint64_t>(4 * side, 4));
    }
  }

  std::uint64_t ragged_length() {
    const double share = random_.share();
    const auto length = static_cast<std::uint64_t>(static_cast<double>(shape_.length) * (0.1 + 0.9 * share * share));
    return std::max<std::uint64_t>(length / 8 * 8, 8);
  }

  std::vector<std::vector<std::uint32_t>> forward(std::uint64_t length) {
    std::vector<std::vector<std::uint32_t>> kept(shape_.layers);
    for (unsigned i = 0; i < shape_.layers; ++i) {
      const layer_bytes bytes = layer(i, length);
      const std::uint32_t workspace = builder_.allocate(bytes.workspace);
      for (const std::uint64_t each : bytes.kept) kept[i].push_back(builder_.allocate(each));
      builder_.free(workspace);
      if (shape_.parallel == parallel_kind::tensor) reduce(bytes.kept.front());
      if (!shape_.checkpoints) continue;
      while (kept[i].size() > 1) {
        builder_.free(kept[i].back());
        kept[i].pop_back();
      }
    }
    return kept;
  }

  void backward(std::uint64_t length, std::vector<std::vector<std::uint32_t>>& kept) {
    std::uint64_t bucket = 0;
    for (unsigned i = shape_.layers; i-- > 0;) {
      const layer_bytes bytes = layer(i, length);
      if (shape_.checkpoints) {
        for (std::size_t k = 1; k < bytes.kept.size(); ++k) kept[i].push_back(builder_.allocate(bytes.kept[k]));
      }
      const std::uint32_t flow = builder_.allocate(2 * bytes.kept.front());
      bucket += layer_gradients(i);
      while (!kept[i].empty()) {
        builder_.free(kept[i].back());
        kept[i].pop_back();
      }
      builder_.free(flow);
      if (shape_.parallel == parallel_kind::data && (bucket >= bucket_bytes || i == 0)) {
        reduce(bucket);
        bucket = 0;
      }
    }
  }

  std::uint64_t layer_gradients(unsigned layer) {
    std::uint64_t sum = 0;
    for (std::size_t w = 0; w < weights_.size(); ++w) {
      if (weights_of_[w] != layer) continue;
      const std::uint32_t fresh = builder_.allocate(weights_[w]);
      sum += weights_[w];
      if (gradients_[w] == none) {
        gradients_[w] = fresh;
      } else {
        builder_.free(fresh);  // added to the gradients of an earlier micro-batch
      }
    }
    return sum;
  }

  /// A buffer that another stream reads while the program continues.
  void reduce(std::uint64_t bytes) {
    const std::uint32_t buffer = builder_.allocate(bytes, communicate);
    builder_.free(buffer, communicate);
  }

  void update() {
    for (std::size_t w = 0; w < weights_.size(); ++w) {
      const bool large = shape_.optimiser == optimiser_kind::adam || shape_.optimiser == optimiser_kind::adafactor;
      const std::uint32_t first = builder_.allocate(weights_[w]);
      if (large) builder_.free(builder_.allocate(weights_[w]));
      builder_.free(gradients_[w], compute);
      builder_.free(first);
    }
  }

  void evaluate(std::uint64_t length) {
    std::vector<std::uint32_t> outputs;
    for (int batch = 0; batch < 4; ++batch) {
      std::uint32_t before = builder_.allocate(layer(0, length).kept.front());
      for (unsigned i = 0; i < shape_.layers; ++i) {
        const layer_bytes bytes = layer(i, length);
        const std::uint32_t wide = builder_.allocate(bytes.kept.back());
        const std::uint32_t after = builder_.allocate(bytes.kept.front());
        builder_.free(wide);
        builder_.free(before);
        before = after;
      }
      outputs.push_back(builder_.allocate(shape_.batch * 4096));
      builder_.free(before);
      builder_.wait_for_device();  // counts the right answers
    }
    for (const std::uint32_t each : outputs) builder_.free(each);
  }

  const network_shape& shape_;
  random_numbers& random_;
  trace_builder builder_;
  std::vector<std::uint64_t> weights_;
  std::vector<unsigned> weights_of_;  ///< by layer
  std::vector<std::uint32_t> gradients_;
};

network_shape draw_any(random_numbers& random) {
  network_shape shape;
  shape.model = static_cast<model_kind>(random.below(4));
  shape.optimiser = static_cast<optimiser_kind>(random.below(4));
  shape.parallel = static_cast<parallel_kind>(random.below(4));
  shape.ways = pick(random, std::array{2U, 4U, 8U});
  shape.layers = pick(random, std::array{4U, 6U, 8U, 12U, 16U, 24U});
  shape.width = pick(random, std::array<std::uint64_t, 7>{256, 384, 512, 768, 1024, 1600, 2048});
  shape.batch = pick(random, std::array<std::uint64_t, 8>{1, 2, 4, 6, 8, 16, 24, 32});
  shape.length = shape.model == model_kind::conv
                     ? pick(random, std::array<std::uint64_t, 6>{32, 48, 64, 96, 128, 224})
                     : pick(random, std::array<std::uint64_t, 7>{64, 128, 200, 256, 512, 1024, 2048});
  shape.element_bytes = pick(random, std::array<std::uint64_t, 2>{2, 4});
  shape.ragged = random.below(2) == 0;
  shape.checkpoints = random.below(4) == 0;
  shape.evaluate_every = pick(random, std::array{0U, 0U, 3U, 8U});
  if (shape.parallel == parallel_kind::none) shape.ways = 1;
  return shape;
}

constexpr std::array<std::string_view, 4> model_names{"transformer", "moe", "conv", "recurrent"};
constexpr std::array<std::string_view, 4> optimiser_names{"sgd", "momentum", "adam", "adafactor"};
constexpr std::array<std::string_view, 4> parallel_names{"one", "data", "tensor", "pipeline"};

}  // namespace

std::string network_shape::text() const {
  std::string name =
      fmt::format("{}-w{}x{}-b{}-l{}-e{}-{}-{}", model_names[static_cast<std::size_t>(model)], width, layers, batch,
                  length, element_bytes, optimiser_names[static_cast<std::size_t>(optimiser)],
                  parallel_names[static_cast<std::size_t>(parallel)]);
  if (parallel == parallel_kind::tensor || parallel == parallel_kind::pipeline) name += fmt::format("{}", ways);
  if (ragged) name += "-ragged";
  if (checkpoints) name += "-checkpoints";
  if (evaluate_every != 0) name += fmt::format("-evaluate{}", evaluate_every);
  return name;
}

network_shape draw_network(random_numbers& random) {
  for (;;) {
    const network_shape shape = draw_any(random);
    random_numbers fixed{1};
    const trace step = train(shape, 1, fixed);
    if (step.peak_live_bytes >= least_bytes && step.peak_live_bytes <= most_generated_bytes) return shape;
  }
}

trace train(const network_shape& shape, std::uint64_t ops, random_numbers& random) {
  network net{shape, random};
  net.set_up();
  std::uint64_t number = 1;
  do {
    net.step(number++);
  } while (net.ops() < ops);
  return std::move(net).done(shape.text());
}

}  // namespace gpumem::bench
