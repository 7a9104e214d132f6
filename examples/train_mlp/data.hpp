// The data to learn: points, and the class that a fixed random linear map assigns to each.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace train {

inline constexpr std::size_t inputs = 32;
inline constexpr std::size_t classes = 10;
inline constexpr std::size_t samples = 4096;

struct data_set {
  std::vector<float> x;
  std::vector<int> label;

  explicit data_set(std::mt19937& random) : x(samples * inputs), label(samples) {
    std::normal_distribution<float> draw{0, 1};
    std::vector<float> teacher(classes * inputs);
    for (float& t : teacher) t = draw(random);
    for (float& value : x) value = draw(random);
    for (std::size_t n = 0; n < samples; ++n) {
      float best = -1e30F;
      for (std::size_t c = 0; c < classes; ++c) {
        float score = 0;
        for (std::size_t i = 0; i < inputs; ++i) score += teacher[c * inputs + i] * x[n * inputs + i];
        if (score <= best) continue;
        best = score;
        label[n] = static_cast<int>(c);
      }
    }
  }
};

}  // namespace train
