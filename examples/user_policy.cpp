// A complete user-defined policy: grows in steps of a quarter of the limit, and gives idle segments back under
// pressure. Run it with GPUMEM_POLICY=quarters.
#include <algorithm>
#include <cstdio>

#include "gpumem/allocator.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/sim_device.hpp"

class quarters final : public gpumem::policy {
 public:
  gpumem::segment_request grow(const gpumem::pool_view& view, std::uint64_t need_bytes) override {
    return {.bytes = std::max(need_bytes, view.limit_bytes / 4), .least_bytes = need_bytes};
  }
  bool gives_back(gpumem::give_back /*why*/, const gpumem::pool_view& /*view*/) const override { return true; }
};

int fail(const gpumem::status& why) { return std::fprintf(stderr, "%s\n", why.message().c_str()), 1; }

int main() {
  const gpumem::status added =
      gpumem::register_policy("quarters", "a quarter of the limit at a time",
                              [](const gpumem::policy_setup&) { return std::make_unique<quarters>(); });
  if (!added) return fail(added);

  gpumem::settings with;
  if (const auto read = with.apply(gpumem::process_environment()); !read) return fail(read);
  gpumem::sim_device gpu;
  gpumem::device* devices[]{&gpu};
  auto opened = gpumem::allocator::open(devices, with);
  if (!opened) return fail(opened.why());
  gpumem::allocator& memory = **opened;

  void* block = memory.allocate(std::size_t{5} << 20);
  std::printf("policy %s holds %s\n", memory.devices()[0].policy.c_str(),
              gpumem::format_bytes(memory.stats(0)->reserved_bytes).c_str());
  memory.deallocate(block);
}
