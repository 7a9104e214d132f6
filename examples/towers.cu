// Data-parallel training on logical devices: one tower on each, the same network in all of them, averaged gradients.
//
//   towers [--device cuda:N|sim] [--steps N] [--seed N] [--hidden N] [--json FILE]
//
// GPUMEM_POOLS sets the number of logical devices (by default `512MiB,512MiB`: one card as two). The code is the same
// as for several cards: it asks gpumem for devices and gives each a stream, a share of the batch and its own weights.
// It sums the gradients on the first device and gives the mean to all. Every tower then makes the same step, so their
// weights stay identical to the bit. Batches reach the devices through pinned std::pmr vectors.
#include <cstdio>
#include <deque>

#include "gpumem/adapters/pmr.hpp"
#include "train_mlp/data.hpp"
#include "train_mlp/machine.hpp"
#include "train_mlp/memory.hpp"
#include "train_mlp/network.hpp"
#include "train_mlp/program.hpp"

namespace {

using namespace train;

/// into = (into + from) * factor
struct add_kernel {
  float* into;
  const float* from;
  float factor;
  BOTH void operator()(std::size_t k) const { into[k] = (into[k] + from[k]) * factor; }
};

struct copy_kernel {
  float* into;
  const float* from;
  BOTH void operator()(std::size_t k) const { into[k] = from[k]; }
};

/// The state on one logical device.
struct tower {
  tower(machine& on, std::shared_ptr<gpumem::allocator> from, int logical)
      : memory{on, std::move(from), logical}, stream{on.create_stream()} {}
  gpumem_memory memory;
  gpumem::stream_ref stream;
  std::vector<layer> layers;
  std::vector<array<float>> gradients;  // of a step, last layer first
  std::vector<array<float>> sums;       // of the losses, one a step
};

/// Forward and backward over `size` samples of the batch, up to the gradients by the weights.
void run_tower(machine& on, tower& t, gpumem::pinned_resource& pinned, const data_set& data, const std::size_t* picked,
               std::size_t size) {
  std::pmr::vector<float> host_x{&pinned};
  std::pmr::vector<int> host_label{&pinned};
  host_x.reserve(size * inputs);
  host_label.reserve(size);
  for (std::size_t b = 0; b < size; ++b) {
    const float* const point = data.x.data() + picked[b] * inputs;
    host_x.insert(host_x.end(), point, point + inputs);
    host_label.push_back(data.label[picked[b]]);
  }
  const array<float> x{t.memory, size * inputs, t.stream};
  const array<int> label{t.memory, size, t.stream};
  on.copy(x.data(), host_x.data(), size * inputs * sizeof(float), t.stream, x.all());
  on.copy(label.data(), host_label.data(), size * sizeof(int), t.stream, label.all());
  require(pinned.also_used_on(host_x.data(), t.stream));
  require(pinned.also_used_on(host_label.data(), t.stream));

  std::deque<array<float>> activations;
  const array<float>* in = &x;
  for (std::size_t l = 0; l < t.layers.size(); ++l) {
    activations.push_back(t.layers[l].forward(on, t.memory, t.stream, *in, size, l + 1 < t.layers.size()));
    in = &activations.back();
  }
  const array<float> losses{t.memory, size, t.stream};
  array<float> dy{t.memory, size * classes, t.stream};
  on.launch(t.stream, size, loss_kernel{in->data(), label.data(), losses.data(), dy.data(), classes, size},
            {in->all(), label.all(), losses.all(), dy.all()});
  array<float> sum{t.memory, 1, t.stream};
  on.sum(
      losses.data(), sum.data(), size, t.stream, [&](std::size_t bytes) { return t.memory.take(bytes, t.stream); },
      [&](void* p, std::size_t /*bytes*/) { t.memory.give(p); });
  t.sums.push_back(std::move(sum));
  t.gradients.clear();
  for (std::size_t l = t.layers.size(); l-- > 0;) {
    const array<float>& below = l == 0 ? x : activations[l - 1];
    t.gradients.push_back(t.layers[l].weight_gradient(on, t.memory, t.stream, below, dy, size));
    if (l > 0) dy = t.layers[l].input_gradient(on, t.memory, t.stream, below, dy, size);
  }
}

/// Replaces every tower's gradients by their mean: summed on the first tower, which the others read.
void average_gradients(machine& on, std::deque<tower>& towers) {
  tower& first = towers.front();
  for (std::size_t n = 1; n < towers.size(); ++n) {
    tower& t = towers[n];
    on.order(t.stream, first.stream);
    const float factor = n + 1 == towers.size() ? 1.0F / static_cast<float>(towers.size()) : 1.0F;
    for (std::size_t g = 0; g < t.gradients.size(); ++g) {
      const array<float>& into = first.gradients[g];
      const array<float>& from = t.gradients[g];
      on.launch(first.stream, into.count(), add_kernel{into.data(), from.data(), factor}, {into.all(), from.all()});
      // The tower waits for this below, before it uses or frees anything again.
    }
  }
  for (std::size_t n = 1; n < towers.size(); ++n) {
    tower& t = towers[n];
    on.order(first.stream, t.stream);
    for (std::size_t g = 0; g < t.gradients.size(); ++g) {
      const array<float>& from = first.gradients[g];
      const array<float>& into = t.gradients[g];
      on.launch(t.stream, into.count(), copy_kernel{into.data(), from.data()}, {into.all(), from.all()});
      first.memory.also_used_on(from.data(), t.stream);
    }
  }
}

std::vector<float> on_host(machine& on, gpumem::stream_ref s, const array<float>& from) {
  std::vector<float> out(from.count());
  on.copy(out.data(), from.data(), out.size() * sizeof(float), s, from.all());
  on.wait_for(s);
  return out;
}

/// The mean loss of a step over the samples of all towers.
float loss_of(machine& on, const std::deque<tower>& towers, std::size_t step, std::size_t size) {
  float total = 0;
  for (const tower& t : towers) total += on_host(on, t.stream, t.sums[step]).front();
  return total / static_cast<float>(size);
}

bool same_weights(machine& on, const std::deque<tower>& towers) {
  for (std::size_t l = 0; l < towers.front().layers.size(); ++l) {
    const std::vector<float> known = on_host(on, towers.front().stream, towers.front().layers[l].weights());
    for (const tower& t : towers) {
      if (on_host(on, t.stream, t.layers[l].weights()) != known) return false;
    }
  }
  return true;
}

int run(const options& with) {
  const std::unique_ptr<machine> on = open_machine("towers", with.device);
  gpumem::settings settings;
  require(settings.set("pools", "512MiB,512MiB"));
  const std::shared_ptr<gpumem::allocator> allocator = open_gpumem(*on, settings);
  auto pinned = gpumem::pinned_resource::open(on->edge());
  require(pinned.why());
  const std::size_t count = allocator->devices().size();
  if (count > 4)
    throw std::invalid_argument{"GPUMEM_POOLS names " + std::to_string(count) + " devices: expected 1 to 4"};

  std::mt19937 random{with.seed};
  const data_set data{random};
  const std::vector<std::size_t> widths{inputs, with.hidden, with.hidden, classes};
  std::deque<tower> towers;
  for (const gpumem::logical_device& d : allocator->devices()) {
    tower& t = towers.emplace_back(*on, allocator, d.ordinal);
    std::mt19937 same_for_all{with.seed};
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
      t.layers.emplace_back(*on, t.memory, t.stream, widths[l], widths[l + 1], same_for_all);
    }
    std::printf("tower %d: pool %s of %s on %s, %s\n", d.ordinal, d.name.c_str(),
                gpumem::format_bytes(d.limit_bytes).c_str(), d.gpu_name.c_str(), d.policy.c_str());
  }

  std::vector<std::size_t> sizes;
  std::vector<std::size_t> picked;
  for (int step = 0; step < with.steps; ++step) {
    // A multiple of 12, so that 1 to 4 towers get equal shares of the same batches.
    const std::size_t size = 12 * std::uniform_int_distribution<std::size_t>{6, 21}(random);
    picked.resize(size);
    for (std::size_t& p : picked) p = std::uniform_int_distribution<std::size_t>{0, samples - 1}(random);
    const std::size_t share = size / count;
    for (std::size_t n = 0; n < count; ++n) run_tower(*on, towers[n], **pinned, data, picked.data() + n * share, share);
    average_gradients(*on, towers);
    for (tower& t : towers) {
      for (std::size_t l = 0; l < t.layers.size(); ++l) {
        t.layers[l].update(*on, t.stream, t.gradients[t.layers.size() - 1 - l], step);
      }
    }
    sizes.push_back(size);
    if (step % 50 == 0) {
      std::printf("step %d loss %.6f\n", step,
                  static_cast<double>(loss_of(*on, towers, sizes.size() - 1, sizes.back())));
    }
  }
  on->wait_for_all();
  const bool same = same_weights(*on, towers);
  const float first_loss = loss_of(*on, towers, 0, sizes.front());
  const float final_loss = loss_of(*on, towers, sizes.size() - 1, sizes.back());
  std::printf("final loss %.6f, first %.6f, weights of %zu towers %s\n", static_cast<double>(final_loss),
              static_cast<double>(first_loss), count, same ? "the same" : "DIFFER");
  std::vector<figures> pools;
  for (const gpumem::logical_device& d : allocator->devices()) {
    const gpumem::statistics now = *allocator->stats(d.ordinal);
    std::printf("tower %d: peak live %s, peak reserved %s\n", d.ordinal,
                gpumem::format_bytes(now.peak_live_bytes).c_str(),
                gpumem::format_bytes(now.peak_reserved_bytes).c_str());
    pools.push_back({{"name", d.name},
                     {"limit_bytes", d.limit_bytes},
                     {"peak_live_bytes", now.peak_live_bytes},
                     {"peak_reserved_bytes", now.peak_reserved_bytes}});
  }
  const std::uint64_t hazards = on->sim() != nullptr ? on->sim()->hazard_count() : 0;
  if (on->sim() != nullptr) std::printf("simulated device: hazards %llu\n", static_cast<unsigned long long>(hazards));
  write({{"device", on->edge().info().name},
         {"simulated", on->edge().info().simulated},
         {"towers", pools},
         {"steps", with.steps},
         {"first_loss", first_loss},
         {"final_loss", final_loss},
         {"same_weights", same},
         {"hazards", hazards}},
        with);
  return same && hazards == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("towers",
                     "Trains one network on all logical devices of a GPU, in towers whose gradients are averaged.",
                     false, argc, argv, run);
}
