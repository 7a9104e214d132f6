// Allocates and frees through the installed library; exit status 0 if every step succeeds.
#include <cstdio>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"

int main() {
  gpumem::sim_device gpu{{.host_memory = true}};  // with memory that the program may write to
  gpumem::device* devices[]{&gpu};
  auto opened = gpumem::allocator::open(devices, gpumem::settings{});
  if (!opened) {
    std::fprintf(stderr, "open: %s\n", opened.why().message().c_str());
    return 1;
  }
  gpumem::allocator& memory = **opened;
  void* block = memory.allocate(std::size_t{3} << 20);
  memory.deallocate(block);
  const gpumem::status sound = memory.check(0);
  if (!sound) std::fprintf(stderr, "check: %s\n", sound.message().c_str());
  return sound ? 0 : 1;
}
