// On a simulated GPU, with the settings of the environment: opens the allocator, allocates, frees, says what it holds.
#include <cstdio>

#include "gpumem/default_allocator.hpp"
#include "gpumem/sim_device.hpp"

int main() {
  gpumem::sim_device gpu{{.host_memory = true}};  // with memory that the program may write to
  gpumem::device* devices[]{&gpu};
  const auto memory = gpumem::open_allocator(devices);
  if (!memory) return std::puts(memory.why().message().c_str()), 1;
  void* block = (*memory)->allocate(std::size_t{64} << 20, gpu.create_stream());
  (*memory)->deallocate(block);
  std::printf("reserved %s\n", gpumem::format_bytes((*memory)->stats(0)->reserved_bytes).c_str());
}
