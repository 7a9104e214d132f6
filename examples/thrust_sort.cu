// Thrust with its containers and its algorithms' scratch memory from gpumem: sorts and reduces a million numbers.
//
// Compiled by nvcc it runs on a GPU. Compiled as C++ (thrust_sort) Thrust's algorithms run on the host, on the memory
// of a simulated GPU.
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

#include "gpumem/adapters/thrust.hpp"
#ifdef __CUDACC__
#include <thrust/system/cuda/execution_policy.h>

#include "gpumem/default_allocator.hpp"
#else
#include <thrust/system/cpp/execution_policy.h>

#include "gpumem/sim_device.hpp"
#endif

namespace {

#ifdef __CUDACC__
gpumem::allocator& open() {
  const auto opened = gpumem::default_allocator();
  if (!opened) std::fprintf(stderr, "thrust_sort: %s\n", opened.why().message().c_str()), std::exit(1);
  return **opened;
}
auto with_scratch(gpumem::thrust_allocator<char>& from) { return thrust::cuda::par(from); }
#else
gpumem::allocator& open() {
  static gpumem::sim_device gpu{{.host_memory = true}};
  gpumem::device* const devices[]{&gpu};
  static auto opened = gpumem::allocator::open(devices, gpumem::settings{});
  if (!opened) std::fprintf(stderr, "thrust_sort: %s\n", opened.why().message().c_str()), std::exit(1);
  return **opened;
}
auto with_scratch(gpumem::thrust_allocator<char>& from) { return thrust::cpp::par(from); }
#endif

}  // namespace

int main() {
  gpumem::allocator& memory = open();
  gpumem::thrust_resource resource{memory};
  gpumem::thrust_allocator<char> scratch{&resource};

  thrust::host_vector<int> host(1 << 20);
  std::mt19937 random{1};
  std::generate(host.begin(), host.end(), [&random] { return static_cast<int>(random() % 1000); });
  bool good = true;
  for (int round = 0; round < 5; ++round) {
    thrust::device_vector<int, gpumem::thrust_allocator<int>> v(host.begin(), host.end(), &resource);
    thrust::sort(with_scratch(scratch), v.begin(), v.end());
    const long long sum = thrust::reduce(with_scratch(scratch), v.begin(), v.end(), 0LL);
    const thrust::host_vector<int> sorted(v.begin(), v.end());
    good =
        good && std::is_sorted(sorted.begin(), sorted.end()) && sum == std::accumulate(host.begin(), host.end(), 0LL);
  }
  const gpumem::statistics now = *memory.stats(0);
  std::printf("%s; %llu allocations, segments taken %llu, live blocks %llu\n", good ? "sorted" : "NOT sorted",
              static_cast<unsigned long long>(now.allocations), static_cast<unsigned long long>(now.grown_segments),
              static_cast<unsigned long long>(now.live_blocks));
  return good && now.live_blocks == 0 ? 0 : 1;
}
