// A multi-layer perceptron: forward, backward and Adam, as kernels whose bodies run on the GPU and on the CPU alike.
//
// Every sum is taken in one fixed order and nothing is added atomically, so the same device gives the same bits
// whatever memory the arrays lie in. Activations, gradients and workspace live for one step, weights and moments for
// the run.
#pragma once

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "memory.hpp"

namespace train {

/// y[b][o] = bias[o] + sum over i of x[b][i] * w[o][i], with ReLU where there is a next layer.
struct forward_kernel {
  const float *x, *w, *bias;
  float* y;
  std::size_t in, out;
  bool relu;
  BOTH void operator()(std::size_t k) const {
    const std::size_t b = k / out;
    const std::size_t o = k % out;
    float sum = bias[o];
    for (std::size_t i = 0; i < in; ++i) sum += x[b * in + i] * w[o * in + i];
    y[k] = relu && sum < 0 ? 0 : sum;
  }
};

/// Softmax cross-entropy of one sample, and its gradient by the logits, divided by the batch.
struct loss_kernel {
  const float* logits;
  const int* labels;
  float *loss, *gradient;
  std::size_t classes, batch;
  BOTH void operator()(std::size_t b) const {
    const float* z = logits + b * classes;
    float most = z[0];
    for (std::size_t c = 1; c < classes; ++c) most = z[c] > most ? z[c] : most;
    float sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += expf(z[c] - most);
    const auto label = static_cast<std::size_t>(labels[b]);
    loss[b] = logf(sum) - (z[label] - most);
    for (std::size_t c = 0; c < classes; ++c) {
      const float p = expf(z[c] - most) / sum;
      gradient[b * classes + c] = (p - (c == label ? 1.0F : 0.0F)) / static_cast<float>(batch);
    }
  }
};

/// dx[b][i] = sum over o of dy[b][o] * w[o][i], where the ReLU that made x let it through.
struct backward_input_kernel {
  const float *dy, *w, *x;
  float* dx;
  std::size_t in, out;
  BOTH void operator()(std::size_t k) const {
    const std::size_t b = k / in;
    const std::size_t i = k % in;
    float sum = 0;
    for (std::size_t o = 0; o < out; ++o) sum += dy[b * out + o] * w[o * in + i];
    dx[k] = x[k] > 0 ? sum : 0;
  }
};

/// dw[o][i] = sum over b of dy[b][o] * x[b][i]; the bias is the input that is always 1.
struct backward_weight_kernel {
  const float *dy, *x;
  float *dw, *dbias;
  std::size_t in, out, batch;
  BOTH void operator()(std::size_t k) const {
    const std::size_t o = k / (in + 1);
    const std::size_t i = k % (in + 1);
    float sum = 0;
    for (std::size_t b = 0; b < batch; ++b) sum += dy[b * out + o] * (i < in ? x[b * in + i] : 1.0F);
    (i < in ? dw[o * in + i] : dbias[o]) = sum;
  }
};

/// Adam (Kingma and Ba, 2015), with its constants and bias correction.
struct adam_kernel {
  float *w, *m, *v;
  const float* g;
  float rate, correction1, correction2;
  BOTH void operator()(std::size_t k) const {
    m[k] = 0.9F * m[k] + 0.1F * g[k];
    v[k] = 0.999F * v[k] + 0.001F * g[k] * g[k];
    w[k] -= rate * (m[k] * correction1) / (sqrtf(v[k] * correction2) + 1e-8F);
  }
};

/// Weights and bias of a layer in one array, so that one kernel updates them.
class layer {
 public:
  layer(machine& on, memory& from, gpumem::stream_ref s, std::size_t in, std::size_t out, std::mt19937& random)
      : in_{in}, out_{out}, w_{from, (in + 1) * out, s}, m_{from, (in + 1) * out, s}, v_{from, (in + 1) * out, s} {
    std::normal_distribution<float> draw{0, std::sqrt(2.0F / static_cast<float>(in))};
    std::vector<float> host((in + 1) * out, 0.0F);
    for (std::size_t k = 0; k < in * out; ++k) host[k] = draw(random);
    on.copy(w_.data(), host.data(), host.size() * sizeof(float), s, w_.all());
    std::fill(host.begin(), host.end(), 0.0F);
    on.wait_for(s);
    on.copy(m_.data(), host.data(), host.size() * sizeof(float), s, m_.all());
    on.copy(v_.data(), host.data(), host.size() * sizeof(float), s, v_.all());
    on.wait_for(s);  // `host` goes
  }

  [[nodiscard]] std::size_t in() const noexcept { return in_; }
  [[nodiscard]] std::size_t out() const noexcept { return out_; }

  array<float> forward(machine& on, memory& from, gpumem::stream_ref s, const array<float>& x, std::size_t batch,
                       bool relu) const {
    array<float> y{from, batch * out_, s};
    on.launch(s, batch * out_, forward_kernel{x.data(), w_.data(), bias(), y.data(), in_, out_, relu},
              {x.all(), w_.all(), y.all()});
    return y;
  }

  /// The gradient by the layer's input, from the one by its output.
  array<float> input_gradient(machine& on, memory& from, gpumem::stream_ref s, const array<float>& x,
                              const array<float>& dy, std::size_t batch) const {
    array<float> dx{from, batch * in_, s};
    on.launch(s, batch * in_, backward_input_kernel{dy.data(), w_.data(), x.data(), dx.data(), in_, out_},
              {dy.all(), w_.all(), x.all(), dx.all()});
    return dx;
  }
  /// The gradient by weights and bias.
  array<float> weight_gradient(machine& on, memory& from, gpumem::stream_ref s, const array<float>& x,
                               const array<float>& dy, std::size_t batch) const {
    array<float> dw{from, (in_ + 1) * out_, s};
    on.launch(s, (in_ + 1) * out_,
              backward_weight_kernel{dy.data(), x.data(), dw.data(), dw.data() + in_ * out_, in_, out_, batch},
              {dy.all(), x.all(), dw.all()});
    return dw;
  }
  void update(machine& on, gpumem::stream_ref s, const array<float>& dw, int step) {
    const auto t = static_cast<float>(step + 1);
    on.launch(s, (in_ + 1) * out_,
              adam_kernel{w_.data(), m_.data(), v_.data(), dw.data(), 1e-3F, 1 / (1 - std::pow(0.9F, t)),
                          1 / (1 - std::pow(0.999F, t))},
              {w_.all(), m_.all(), v_.all(), dw.all()});
  }

  /// Updates the layer and returns the gradient by its input (empty for the first layer, which needs none).
  array<float> backward(machine& on, memory& from, gpumem::stream_ref s, const array<float>& x, const array<float>& dy,
                        std::size_t batch, bool first, int step) {
    array<float> dx = first ? array<float>{from, 1, s} : input_gradient(on, from, s, x, dy, batch);
    update(on, s, weight_gradient(on, from, s, x, dy, batch), step);
    return dx;
  }

  [[nodiscard]] const array<float>& weights() const noexcept { return w_; }

 private:
  [[nodiscard]] float* bias() const noexcept { return w_.data() + in_ * out_; }
  std::size_t in_;
  std::size_t out_;
  array<float> w_;
  array<float> m_;
  array<float> v_;
};

}  // namespace train
