// Pinned staging buffers as std::pmr containers: the host fills batches and a stream copies them. A buffer is reused
// only when the copy out of it is done. The GPU is simulated.
#include <cstdio>
#include <cstring>
#include <vector>

#include "gpumem/adapters/buffer.hpp"
#include "gpumem/adapters/pmr.hpp"
#include "gpumem/sim_device.hpp"

int main() {
  gpumem::sim_device gpu{{.host_memory = true}};
  gpumem::device* devices[]{&gpu};
  auto on_gpu = gpumem::allocator::open(devices, gpumem::settings{});
  auto staging = gpumem::pinned_resource::open(gpu, std::uint64_t{256} << 20);
  if (!on_gpu || !staging) return std::puts((on_gpu.why().message() + staging.why().message()).c_str()), 1;
  const gpumem::stream_ref copies = gpu.create_stream();

  double sum = 0;
  for (int step = 0; step < 100; ++step) {
    std::pmr::vector<float> batch(1 << 20, static_cast<float>(step), staging->get());
    const gpumem::buffer<float> x{**on_gpu, batch.size(), copies};

    // cudaMemcpyAsync(x.data(), batch.data(), x.size_bytes(), cudaMemcpyHostToDevice, copies);
    std::memcpy(x.data(), batch.data(), x.size_bytes());
    gpu.enqueue(copies, 300'000);

    if (const auto noted = (*staging)->also_used_on(batch.data(), copies); !noted) {
      return std::puts(noted.message().c_str()), 1;
    }
    sum += x.data()[0];
  }  // the host continues with the next batch; this one's memory waits for its copy
  const gpumem::statistics pinned = *(*staging)->pool().stats(0);
  std::printf("sum %.0f; %llu buffers of 4 MiB from %s of pinned memory, %llu fences\n", sum,
              static_cast<unsigned long long>(pinned.allocations),
              gpumem::format_bytes(pinned.peak_reserved_bytes).c_str(), static_cast<unsigned long long>(pinned.fences));
}
