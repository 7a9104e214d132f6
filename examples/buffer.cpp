// buffer<T>: device memory that is freed at the end of its scope, in the order of its stream. The simulated GPU has
// host memory, so that loops can replace kernels here.
#include "gpumem/adapters/buffer.hpp"

#include <cstdio>
#include <cstring>
#include <numeric>

#include "gpumem/sim_device.hpp"

int main() {
  gpumem::settings with;
  if (const auto read = with.apply(gpumem::process_environment()); !read) return std::puts(read.message().c_str()), 1;
  gpumem::sim_device gpu{{.host_memory = true}};
  gpumem::device* devices[]{&gpu};
  auto opened = gpumem::allocator::open(devices, with);
  if (!opened) return std::puts(opened.why().message().c_str()), 1;
  gpumem::allocator& memory = **opened;
  const gpumem::stream_ref compute = gpu.create_stream();
  const gpumem::stream_ref print = gpu.create_stream();

  double sum = 0;
  {
    gpumem::buffer<double> x{memory, 1000, compute};
    std::iota(x.span().begin(), x.span().end(), 1.0);

    // Grows; on a GPU the copy would be a cudaMemcpyAsync on `on`.
    x.resize(2000, [](double* to, const double* from, std::size_t bytes, gpumem::stream_ref /*on*/) {
      std::memcpy(to, from, bytes);
    });
    std::iota(x.span().begin() + 1000, x.span().end(), 1001.0);

    // Another stream reads it too: the block is reused only after that work as well.
    if (const auto noted = x.also_used_on(print); !noted) return std::puts(noted.message().c_str()), 1;
    sum = std::accumulate(x.span().begin(), x.span().end(), 0.0);
  }  // freed, without waiting for anything
  std::printf("sum %.0f, live blocks %llu\n", sum, static_cast<unsigned long long>(memory.stats(0)->live_blocks));
}
