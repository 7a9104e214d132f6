// Training that links gpumem: a multi-layer perceptron, on a GPU, or on the CPU over the simulated device.
//
//   train_mlp [--device cuda:N|sim] [--allocator gpumem|cuda_malloc|cuda_malloc_async] [--steps N] [--seed N]
//             [--hidden N] [--json FILE]
//
// gpumem takes its settings from GPUMEM_* (try GPUMEM_POLICY=caching, GPUMEM_LIMIT=64MiB, GPUMEM_VERBOSE=1). Batches
// vary in size, to give the allocator work. One stream copies the next batch while another one computes, and the host
// is up to two steps ahead of both, so blocks are freed while work that uses them is still enqueued. The losses on a
// device are the same bits under every allocator, which only chooses addresses.
#include <array>
#include <chrono>
#include <cstdio>
#include <optional>

#include "train_mlp/data.hpp"
#include "train_mlp/machine.hpp"
#include "train_mlp/memory.hpp"
#include "train_mlp/network.hpp"
#include "train_mlp/program.hpp"

namespace {

using namespace train;

constexpr std::size_t most_batch = 256;

/// Pinned host memory, so that the copy runs during the computation.
class staging {
 public:
  explicit staging(machine& on) : copied{on}, on_{on} {
    const auto at = on.edge().alloc_host(bytes);
    require(at.why());
    at_ = *at;
  }
  ~staging() { static_cast<void>(on_.edge().free_host(at_)); }
  staging(const staging&) = delete;
  staging& operator=(const staging&) = delete;
  [[nodiscard]] float* x() const { return reinterpret_cast<float*>(static_cast<std::uintptr_t>(at_)); }
  [[nodiscard]] int* label() const { return reinterpret_cast<int*>(x() + most_batch * inputs); }
  /// Must not be filled again before the copy out of it is done.
  moment copied;

 private:
  static constexpr std::size_t bytes = most_batch * (inputs * sizeof(float) + sizeof(int));
  machine& on_;
  gpumem::address at_ = 0;
};

struct batch {
  std::size_t size;
  array<float> x;
  array<int> label;
};

/// The next batch, being copied to the device on the prefetch stream.
batch fetch(machine& on, memory& from, gpumem::stream_ref prefetch, staging& host, const data_set& data,
            std::mt19937& random) {
  const std::size_t size = std::uniform_int_distribution<std::size_t>{most_batch / 4, most_batch}(random);
  std::uniform_int_distribution<std::size_t> pick{0, samples - 1};
  host.copied.wait();
  for (std::size_t b = 0; b < size; ++b) {
    const std::size_t n = pick(random);
    std::copy_n(data.x.begin() + static_cast<std::ptrdiff_t>(n * inputs), inputs, host.x() + b * inputs);
    host.label()[b] = data.label[n];
  }
  batch out{size, {from, size * inputs, prefetch}, {from, size, prefetch}};
  on.copy(out.x.data(), host.x(), size * inputs * sizeof(float), prefetch, out.x.all());
  on.copy(out.label.data(), host.label(), size * sizeof(int), prefetch, out.label.all());
  host.copied.mark(prefetch);
  return out;
}

/// Enqueues one step. Writes the sum of the batch's losses before it to `totals[step]`.
void train_step(machine& on, memory& from, gpumem::stream_ref compute, std::vector<layer>& layers, const batch& now,
                int step, const array<float>& totals) {
  std::vector<array<float>> activations;
  const array<float>* x = &now.x;
  activations.reserve(layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    activations.push_back(layers[l].forward(on, from, compute, *x, now.size, l + 1 < layers.size()));
    x = &activations.back();
  }
  array<float> losses{from, now.size, compute};
  array<float> gradient{from, now.size * classes, compute};
  on.launch(compute, now.size,
            loss_kernel{x->data(), now.label.data(), losses.data(), gradient.data(), classes, now.size},
            {x->all(), now.label.all(), losses.all(), gradient.all()});
  on.sum(
      losses.data(), totals.data() + step, now.size, compute,
      [&](std::size_t bytes) { return from.take(bytes, compute); },
      [&](void* p, std::size_t /*bytes*/) { from.give(p); });
  for (std::size_t l = layers.size(); l-- > 0;) {
    const array<float>& in = l == 0 ? now.x : activations[l - 1];
    gradient = layers[l].backward(on, from, compute, in, gradient, now.size, l == 0, step);
  }
}

/// The mean loss of the batch of a step; waits for it.
float loss_of(machine& on, gpumem::stream_ref compute, const array<float>& totals, std::size_t step, std::size_t size) {
  float total = 0;
  on.copy(&total, totals.data() + step, sizeof total, compute, {totals.data() + step, sizeof total});
  on.wait_for(compute);
  return total / static_cast<float>(size);
}

std::unique_ptr<memory> open_memory(const std::string& named, machine& on) {
  if (named == "gpumem") return std::make_unique<gpumem_memory>(on, open_gpumem(on, {}), 0);
  if (named == "cuda_malloc") return std::make_unique<plain_memory>(on);
#ifdef __CUDACC__
  if (named == "cuda_malloc_async" && on.sim() == nullptr) return std::make_unique<async_memory>(on);
#endif
  if (named == "cuda_malloc_async") {
    throw std::invalid_argument{
        "--allocator cuda_malloc_async: the driver's pool needs a GPU; expected gpumem or "
        "cuda_malloc with --device sim"};
  }
  throw std::invalid_argument{"--allocator " + named + ": expected gpumem, cuda_malloc or cuda_malloc_async"};
}

int run(const options& with) {
  const std::unique_ptr<machine> on = open_machine("train_mlp", with.device);
  const std::unique_ptr<memory> from = open_memory(with.allocator, *on);
  std::mt19937 random{with.seed};
  const data_set data{random};
  const gpumem::stream_ref compute = on->create_stream();
  const gpumem::stream_ref prefetch = on->create_stream();
  std::vector<layer> layers;
  const std::vector<std::size_t> widths{inputs, with.hidden, with.hidden, with.hidden, classes};
  for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
    layers.emplace_back(*on, *from, compute, widths[l], widths[l + 1], random);
  }
  std::printf("train_mlp on %s, allocator %s\n", on->edge().info().name.c_str(), from->name().c_str());

  std::array<staging, 2> host{staging{*on}, staging{*on}};
  std::array<moment, 2> done{moment{*on}, moment{*on}};
  const array<float> totals{*from, static_cast<std::size_t>(with.steps), compute};
  std::vector<std::size_t> sizes;
  std::uint64_t device_used = 0;
  std::optional<batch> next;
  next.emplace(fetch(*on, *from, prefetch, host[0], data, random));
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < with.steps; ++step) {
    const auto turn = static_cast<std::size_t>(step % 2);
    done[turn].wait();  // the step before the last one
    const batch now = *std::move(next);
    on->order(prefetch, compute);
    from->also_used_on(now.x.data(), compute);
    from->also_used_on(now.label.data(), compute);
    next.emplace(fetch(*on, *from, prefetch, host[1 - turn], data, random));
    train_step(*on, *from, compute, layers, now, step, totals);
    done[turn].mark(compute);
    sizes.push_back(now.size);
    if (step % 50 != 0) continue;
    std::printf("step %d loss %.6f\n", step,
                static_cast<double>(loss_of(*on, compute, totals, sizes.size() - 1, now.size)));
    device_used = std::max(device_used, on->used_bytes());
  }
  on->wait_for_all();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  device_used = std::max(device_used, on->used_bytes());
  const float first_loss = loss_of(*on, compute, totals, 0, sizes.front());
  const float final_loss = loss_of(*on, compute, totals, sizes.size() - 1, sizes.back());
  const double steps_per_s = with.steps / took.count();
  std::printf("final loss %a (%.6f), first %.6f\n", static_cast<double>(final_loss), static_cast<double>(final_loss),
              static_cast<double>(first_loss));
  std::printf("%.1f steps/s, peak device memory %s, in use on the device %s\n", steps_per_s,
              gpumem::format_bytes(from->peak_bytes()).c_str(), gpumem::format_bytes(device_used).c_str());
  const std::uint64_t hazards = on->sim() != nullptr ? on->sim()->hazard_count() : 0;
  if (on->sim() != nullptr) std::printf("simulated device: hazards %llu\n", static_cast<unsigned long long>(hazards));
  write({{"device", on->edge().info().name},
         {"simulated", on->edge().info().simulated},
         {"allocator", with.allocator},
         {"description", from->name()},
         {"steps", with.steps},
         {"seed", with.seed},
         {"hidden", with.hidden},
         {"first_loss", first_loss},
         {"final_loss", final_loss},
         {"steps_per_s", steps_per_s},
         {"peak_device_bytes", from->peak_bytes()},
         {"device_used_bytes", device_used},
         {"hazards", hazards}},
        with);
  return hazards == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("train_mlp", "Trains a multi-layer perceptron whose device memory comes from gpumem.", true, argc,
                     argv, run);
}
