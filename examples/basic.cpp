// Opens the allocator on a simulated GPU with the settings of the environment, allocates, frees, and says what it
// holds.
#include <cstdio>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"

int main() {
  gpumem::settings with;
  if (const auto read = with.apply(gpumem::process_environment()); !read) return std::puts(read.message().c_str()), 1;
  gpumem::sim_device gpu;
  gpumem::device* devices[]{&gpu};
  auto memory = gpumem::allocator::open(devices, with);
  if (!memory) return std::puts(memory.why().message().c_str()), 1;
  void* block = (*memory)->allocate(std::size_t{64} << 20, gpu.create_stream());
  (*memory)->deallocate(block);
  const gpumem::statistics now = *(*memory)->stats(0);
  std::printf("live %s, reserved %s\n", gpumem::format_bytes(now.live_bytes).c_str(),
              gpumem::format_bytes(now.reserved_bytes).c_str());
}
