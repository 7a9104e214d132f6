/// A preloaded program among others: the card that GPUMEM_DEVICES names, the group's budget, the answers to `gpumem
/// top`.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "driver_program.hpp"
#include "group_ledger.hpp"
#include "status_socket.hpp"
#include "temporary_folder.hpp"

namespace gpumem::preload_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr std::size_t mib = std::size_t{1} << 20;
const std::string zeros = "00000000-0000-0000-0000-00000000000";

class Sharing : public driver_program {
 protected:
  void SetUp() override {
    driver_program::SetUp();
    set("GPUMEM_SHARED_FOLDER", folder_);
    set("GPUMEM_NVML", GPUMEM_TEST_NVML);
    set("SIMCUDA_DEVICES", "3");
    set("FAKENVML_CARDS", "3");
    set("FAKENVML_UUIDS", zeros + "2," + zeros + "1," + zeros + "0");  // NVML counts in reverse order
    set("CUDA_DEVICE_ORDER", "PCI_BUS_ID");                            // and by address they are as CUDA's
  }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

  static CUresult start() { return linked<PFN_cuInit_v2000>("cuInit")(0); }
  static int devices() {
    int count = -1;
    EXPECT_EQ(linked<PFN_cuDeviceGetCount_v2000>("cuDeviceGetCount")(&count), CUDA_SUCCESS);
    return count;
  }
  static int card_of(int ordinal) {
    CUuuid uuid{};
    EXPECT_EQ(linked<PFN_cuDeviceGetUuid_v11040>("cuDeviceGetUuid_v2")(&uuid, ordinal), CUDA_SUCCESS);
    return uuid.bytes[15];
  }
  static CUresult try_allocate(std::size_t bytes) {
    CUdeviceptr at = 0;
    return linked<PFN_cuMemAlloc_v3020>("cuMemAlloc_v2")(&at, bytes);
  }
  [[nodiscard]] std::string ledger() const { return folder_ + "/group-lab-GPU-" + zeros + "0"; }

  temporary_folder temporary_;
  std::string folder_ = temporary_.path();
};

TEST_F(Sharing, TheProgramSeesTheCardsThatGpumemDevicesNames) {
  set("GPUMEM_DEVICES", "2,0");
  ASSERT_EQ(start(), CUDA_SUCCESS);
  EXPECT_EQ(devices(), 2);
  EXPECT_EQ(card_of(0), 2);
  EXPECT_EQ(card_of(1), 0);
  EXPECT_EQ(std::getenv("GPUMEM_DEVICES"), nullptr) << "a child must not choose once more";
}

TEST_F(Sharing, AutoIsTheUnusedCard) {
  set("FAKENVML_PIDS", "0=1,2=1");
  set("GPUMEM_DEVICES", "auto");
  ASSERT_EQ(start(), CUDA_SUCCESS);
  EXPECT_EQ(devices(), 1);
  EXPECT_EQ(card_of(0), 1);
}

TEST_F(Sharing, AmongThoseThatAreVisible) {
  set("CUDA_VISIBLE_DEVICES", "1,2");
  set("GPUMEM_DEVICES", "1");
  ASSERT_EQ(start(), CUDA_SUCCESS);
  EXPECT_EQ(devices(), 1);
  EXPECT_EQ(card_of(0), 2);
}

TEST_F(Sharing, ACardThatDoesNotExistIsNoDeviceAndOneLine) {
  set("GPUMEM_DEVICES", "7");
  testing::internal::CaptureStderr();
  EXPECT_EQ(start(), CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "gpumem: GPUMEM_DEVICES=7: card 7 does not exist; expected 0 to 2; this program sees no device\n");
}

TEST_F(Sharing, ABadChoiceIsNoDevice) {
  set("GPUMEM_DEVICES", "-1");
  EXPECT_EQ(start(), CUDA_ERROR_NO_DEVICE);
}

TEST_F(Sharing, WithoutNvmlAutoIsRefused) {
  set("GPUMEM_NVML", "/no/nvml");
  set("GPUMEM_DEVICES", "auto");
  EXPECT_EQ(start(), CUDA_ERROR_NO_DEVICE);
}

TEST_F(Sharing, NoCardsAreNone) {
  set("GPUMEM_DEVICES", "");
  testing::internal::CaptureStderr();
  EXPECT_EQ(start(), CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "it is what was asked for";
}

TEST_F(Sharing, TheGroupsLimitHolds) {
  set("GPUMEM_GROUP", "lab");
  set("GPUMEM_GROUP_LIMIT", "256MiB");
  begin();
  EXPECT_EQ(try_allocate(200 * mib), CUDA_SUCCESS);
  EXPECT_EQ(try_allocate(100 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_allocate(40 * mib), CUDA_SUCCESS);
  EXPECT_LE(used_bytes(), 256 * mib);
}

/// A process of group lab that holds memory until the object ends.
class member {
 public:
  member(const std::string& folder, const std::string& card, std::uint64_t bytes, std::uint64_t limit) {
    EXPECT_EQ(::pipe(joined_.data()), 0);
    EXPECT_EQ(::pipe(end_.data()), 0);
    process_ = ::fork();
    if (process_ == 0) {
      ::close(end_[1]);
      const auto group = group_ledger::join(folder, "lab", card, limit);
      char each = group && (*group)->reserve(bytes) ? '1' : '0';
      static_cast<void>(!::write(joined_[1], &each, 1));
      static_cast<void>(!::read(end_[0], &each, 1));
      ::_exit(0);
    }
    char each = '0';
    EXPECT_EQ(::read(joined_[0], &each, 1), 1);
    EXPECT_EQ(each, '1');
  }
  ~member() {
    for (const int each : {joined_[0], joined_[1], end_[0], end_[1]}) ::close(each);
    static_cast<void>(::waitpid(process_, nullptr, 0));
  }
  member(const member&) = delete;
  member& operator=(const member&) = delete;
  [[nodiscard]] std::string pid() const { return std::to_string(process_); }

 private:
  std::array<int, 2> joined_{};
  std::array<int, 2> end_{};
  pid_t process_ = 0;
};

TEST_F(Sharing, ARefusalByTheGroupsLimitNamesTheGroupAndItsLargestMember) {
  set("GPUMEM_GROUP", "lab");
  set("GPUMEM_GROUP_LIMIT", "256MiB");
  const member other{folder_, "GPU-" + zeros + "0", 150 * mib, 256 * mib};
  testing::internal::CaptureStderr();
  begin();
  EXPECT_EQ(try_allocate(120 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("120.00 MiB asked, group lab holds 150.00 MiB of its 256.00 MiB"));
  EXPECT_THAT(said, ContainsRegex(", pid " + other.pid() + " .preload_sharin.* 150.00 MiB"));
  EXPECT_THAT(said, HasSubstr("end a member or raise GPUMEM_GROUP_LIMIT"));
}

// cudaMalloc then calls the driver, and still counts for the group.
TEST_F(Sharing, TheGroupsLimitHoldsForDedicatedAllocations) {
  set("GPUMEM_GROUP", "lab");
  set("GPUMEM_GROUP_LIMIT", "256MiB");
  set("GPUMEM_IPC", "1");
  begin();
  const CUdeviceptr first = allocate(200 * mib);
  EXPECT_EQ(try_allocate(100 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(linked<PFN_cuMemFree_v3020>("cuMemFree_v2")(first), CUDA_SUCCESS);
  EXPECT_EQ(try_allocate(100 * mib), CUDA_SUCCESS);
  EXPECT_LE(used_bytes(), 256 * mib);
}

TEST_F(Sharing, UnderALimitOnTheProcessTheGroupIsChargedForTheDriversMemory) {
  set("GPUMEM_GROUP", "lab");
  set("GPUMEM_GROUP_LIMIT", "256MiB");
  set("GPUMEM_LIMIT", "800MiB");
  set("GPUMEM_LIMIT_SCOPE", "process");
  set("GPUMEM_HEADROOM", "16MiB");
  begin();
  EXPECT_EQ(try_allocate(mib), CUDA_SUCCESS);
  const auto managed = linked<PFN_cuMemAllocManaged_v6000>("cuMemAllocManaged");
  CUdeviceptr at = 0;
  EXPECT_EQ(managed(&at, 200 * mib, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(try_allocate(100 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr more = 0;
  EXPECT_EQ(managed(&more, 100 * mib, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(linked<PFN_cuMemFree_v3020>("cuMemFree_v2")(at), CUDA_SUCCESS);
  EXPECT_EQ(try_allocate(100 * mib), CUDA_SUCCESS);
}

TEST_F(Sharing, AResetGivesTheGroupItsBytesBack) {
  set("GPUMEM_GROUP", "lab");
  set("GPUMEM_GROUP_LIMIT", "256MiB");
  for (int turn = 0; turn < 3; ++turn) {
    begin();
    EXPECT_EQ(try_allocate(200 * mib), CUDA_SUCCESS) << turn;
    EXPECT_EQ(try_allocate(100 * mib), CUDA_ERROR_OUT_OF_MEMORY) << turn;
    ASSERT_EQ(linked<PFN_cuDevicePrimaryCtxReset_v11000>("cuDevicePrimaryCtxReset_v2")(0), CUDA_SUCCESS);
  }
}

// Nothing is passed on to the driver either, because the program would exceed the limit agreed by the members.
TEST_F(Sharing, ALedgerThatIsNoneServesNothing) {
  set("GPUMEM_GROUP", "lab");
  set("GPUMEM_GROUP_LIMIT", "256MiB");
  std::ofstream{ledger()} << std::string(5000, 'x');
  ASSERT_EQ(::chmod(ledger().c_str(), 0600), 0);
  testing::internal::CaptureStderr();
  begin();
  EXPECT_EQ(try_allocate(mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_allocate(mib), CUDA_ERROR_OUT_OF_MEMORY);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("expected a ledger of group lab"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_EQ(used_bytes(), 0U);
}

TEST_F(Sharing, ALedgerThatIsASymlinkServesNothing) {
  set("GPUMEM_GROUP", "lab");
  set("GPUMEM_GROUP_LIMIT", "256MiB");
  std::filesystem::create_symlink("/dev/null", ledger());
  begin();
  EXPECT_EQ(try_allocate(mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(used_bytes(), 0U);
}

TEST_F(Sharing, GpumemTopIsToldOfEachDevice) {
  set("GPUMEM_POLICY", "caching");
  begin();
  static_cast<void>(allocate(100 * mib));
  CUcontext other = nullptr;
  ASSERT_EQ(linked<PFN_cuDevicePrimaryCtxRetain_v7000>("cuDevicePrimaryCtxRetain")(&other, 2), CUDA_SUCCESS);
  ASSERT_EQ(linked<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent")(other), CUDA_SUCCESS);
  static_cast<void>(allocate(30 * mib));
  const auto told = ask_served(folder_, std::chrono::seconds{5});
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].pid, ::getpid());
  for (const char* const part : {"\"live_bytes\":104857600", "\"live_bytes\":31457280", "\"policy\":\"caching\"",
                                 "\"ordinal\":1", "00000000-0000-0000-0000-000000000002"}) {
    EXPECT_THAT(told[0].answer, HasSubstr(part));
  }
}

}  // namespace
}  // namespace gpumem::preload_test
