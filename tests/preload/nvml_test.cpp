/// NVML's figures for a program with a limit on the process, however it loads NVML.
#include <dlfcn.h>

#include <array>

#include "driver_program.hpp"

namespace gpumem::preload_test {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;
using figures = std::array<unsigned long long, 3>;  // total, free, used
using memory_function = int(void*, unsigned long long*);

class Nvml : public driver_program {
 protected:
  void SetUp() override {
    driver_program::SetUp();
    setenv("GPUMEM_LIMIT", "256MiB", 1);
    setenv("GPUMEM_LIMIT_SCOPE", "process", 1);
    setenv("GPUMEM_HEADROOM", "16MiB", 1);
    setenv("SIMCUDA_CONTEXT_BYTES", "32MiB", 1);
    setenv("FAKENVML_CARDS", "1", 1);
    setenv("FAKENVML_UUIDS", "00000000-0000-0000-0000-000000000000", 1);
    setenv("FAKENVML_MIB", "1024", 1);
    setenv("FAKENVML_DRIVER", std::getenv("GPUMEM_CUDA_DRIVER"), 1);
  }
  static void* library() { return dlopen(GPUMEM_TEST_NVML, RTLD_NOW | RTLD_LOCAL); }
  static void* card() {
    void* out = nullptr;
    auto* const first = reinterpret_cast<int (*)(unsigned, void**)>(dlsym(library(), "nvmlDeviceGetHandleByIndex_v2"));
    EXPECT_EQ(first(0, &out), 0);
    return out;
  }
  static figures seen() {
    figures out{};
    auto* const ask = reinterpret_cast<memory_function*>(dlsym(library(), "nvmlDeviceGetMemoryInfo"));
    EXPECT_EQ(ask(card(), out.data()), 0);
    return out;
  }
};

TEST_F(Nvml, TheLimitIsTheDevice) {
  begin();
  static_cast<void>(allocate(100 * mib));
  EXPECT_EQ(seen(), (figures{256 * mib, 108 * mib, 148 * mib}));
  std::array<unsigned long long, 5> second{};
  auto* const ask = reinterpret_cast<memory_function*>(dlsym(library(), "nvmlDeviceGetMemoryInfo_v2"));
  ASSERT_EQ(ask(card(), second.data()), 0);
  EXPECT_EQ((figures{second[1], second[3], second[4]}), (figures{256 * mib, 108 * mib, 148 * mib}));
}

TEST_F(Nvml, BeforeTheDeviceIsUsedTheLimitIsKnown) { EXPECT_EQ(seen(), (figures{256 * mib, 256 * mib, 0})); }

TEST_F(Nvml, ALimitOnThePoolIsNoNewDevice) {
  setenv("GPUMEM_LIMIT_SCOPE", "pool", 1);
  begin();
  static_cast<void>(allocate(100 * mib));
  EXPECT_EQ(seen()[0], 1024 * mib);
}

// A hook that is more than a jump would make RTLD_NEXT search from the wrong library, and find this hook itself.
TEST_F(Nvml, OtherLookupsAreUntouched) {
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "no_such_function"), nullptr);
  EXPECT_NE(dlsym(RTLD_NEXT, "malloc"), nullptr);
  EXPECT_NE(dlsym(library(), "nvmlDeviceGetUUID"), nullptr);
}

}  // namespace
}  // namespace gpumem::preload_test
