/// Every function of the C++ and C interface reports misuse by the same status: each row of each table is a function.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "c_edge.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/gpumem.h"
#include "gpumem/sim_device.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

/// The result of a function: its status as `errc`, and its message.
struct answer {
  errc code = errc::ok;
  std::string message;
};
template <typename T>
answer answer_of(const result<T>& r) {
  return {r.code(), r.why().message()};
}
answer answer_of(const status& s) { return {s.code(), s.message()}; }
answer answer_of(gpumem_code code) { return {static_cast<errc>(code), gpumem_last_message()}; }

struct row {
  const char* function;
  std::function<answer()> call;
};

class Misuse : public ::testing::Test {
 protected:
  void SetUp() override {
    former_ = set_log_sink([](std::string_view) {});
    settings with;
    ASSERT_TRUE(with.set("pools", "1GiB,1GiB").ok());
    device* const devices[] = {&device_};
    auto opened = allocator::open(devices, with);
    ASSERT_TRUE(opened.ok()) << opened.why().message();
    cpp_ = *std::move(opened);
    ASSERT_EQ(gpumem_open_simulated(std::uint64_t{4} << 30, 1, 0, "pools=1GiB,1GiB", &c_), GPUMEM_OK);
    // Pools that have served requests must answer like new ones.
    for (int pool = 0; pool < 2; ++pool) {
      void* p = nullptr;
      ASSERT_EQ(gpumem_allocate(c_, 4096, pool, nullptr, &p), GPUMEM_OK);
      ASSERT_EQ(gpumem_free(c_, p), GPUMEM_OK);
      cpp_->deallocate(cpp_->allocate(4096, {}, pool));
    }
    block_ = cpp_->allocate(4096);
    ASSERT_EQ(gpumem_allocate(c_, 4096, 0, nullptr, &c_block_), GPUMEM_OK);
  }
  void TearDown() override {
    EXPECT_EQ(gpumem_free(c_, c_block_), GPUMEM_OK) << "it was spoilt";
    EXPECT_EQ(gpumem_check(c_, 0), GPUMEM_OK) << gpumem_last_message();
    EXPECT_EQ(gpumem_close(c_), GPUMEM_OK);
    EXPECT_TRUE(cpp_->try_deallocate(block_).ok()) << "it was spoilt";
    for (int pool = 0; pool < 2; ++pool) EXPECT_TRUE(cpp_->check(pool).ok());
    cpp_.reset();
    set_log_sink(std::move(former_));
  }

  static void expect_each(const std::vector<row>& rows, errc expected, const std::string& named) {
    for (const row& r : rows) {
      const answer got = r.call();
      EXPECT_EQ(to_string(got.code), to_string(expected)) << r.function << ": " << got.message;
      EXPECT_THAT(got.message, ::testing::HasSubstr(named)) << r.function;
    }
  }

  sim_device device_{sim_config{}};
  std::unique_ptr<allocator> cpp_;
  gpumem_allocator* c_ = nullptr;
  void* block_ = nullptr;
  void* c_block_ = nullptr;
  log_sink former_;
};

TEST_F(Misuse, AWrongDeviceIsWrongDevice) {
  for (const int device : {-1, 2, 1000}) {
    void* out = nullptr;
    gpumem_stats stats{};
    stats.struct_bytes = sizeof stats;
    gpumem_device properties{};
    properties.struct_bytes = sizeof properties;
    expect_each(
        {{"try_allocate", [&] { return answer_of(cpp_->try_allocate({.bytes = 512, .device = device})); }},
         {"try_allocate, aligned",
          [&] { return answer_of(cpp_->try_allocate({.bytes = 512, .device = device, .alignment = 4096})); }},
         {"allocate",
          [&]() -> answer {
            try {
              static_cast<void>(cpp_->allocate(512, {}, device));
              return {};
            } catch (const bad_request& refused) {
              return answer_of(refused.why());
            }
          }},
         {"try_deallocate", [&] { return answer_of(cpp_->try_deallocate(block_, {.device = device})); }},
         {"trim", [&] { return answer_of(cpp_->trim(device)); }},
         {"set_limit", [&] { return answer_of(cpp_->set_limit(device, 1U << 30)); }},
         {"stats", [&] { return answer_of(cpp_->stats(device)); }},
         {"check", [&] { return answer_of(cpp_->check(device)); }},
         {"open_region", [&] { return answer_of(cpp_->open_region(device, {})); }},
         {"close_region", [&] { return answer_of(cpp_->close_region(device, 1)); }},
         {"segments", [&] { return answer_of(cpp_->segments(device)); }},
         {"reset_peak_reserved", [&] { return answer_of(cpp_->reset_peak_reserved(device)); }},
         {"enable_peer", [&] { return answer_of(cpp_->enable_peer(device, 0)); }},
         {"gpumem_allocate", [&] { return answer_of(gpumem_allocate(c_, 512, device, nullptr, &out)); }},
         {"gpumem_allocate_aligned",
          [&] { return answer_of(gpumem_allocate_aligned(c_, 512, 4096, device, nullptr, &out)); }},
         {"gpumem_simulated_stream", [&] { return answer_of(gpumem_simulated_stream(c_, device, &out)); }},
         {"gpumem_trim", [&] { return answer_of(gpumem_trim(c_, device, UINT64_MAX, nullptr)); }},
         {"gpumem_set_limit", [&] { return answer_of(gpumem_set_limit(c_, device, 1U << 30, nullptr)); }},
         {"gpumem_get_stats", [&] { return answer_of(gpumem_get_stats(c_, device, &stats)); }},
         {"gpumem_check", [&] { return answer_of(gpumem_check(c_, device)); }},
         {"gpumem_device_properties", [&] { return answer_of(gpumem_device_properties(c_, device, &properties)); }}},
        errc::wrong_device, "device " + std::to_string(device) + " does not exist; expected 0 to 1");
    // These name a GPU by the driver's ordinal.
    expect_each({{"captures_ended", [&] { return answer_of(cpp_->captures_ended(device)); }},
                 {"gpumem_captures_ended", [&] { return answer_of(gpumem_captures_ended(c_, device)); }}},
                errc::wrong_device, "no pool of this allocator is on device " + std::to_string(device));
  }
}

TEST_F(Misuse, ANullOrUnknownPointerIsUnknownPointer) {
  int foreign = 0;
  for (void* const p : {static_cast<void*>(nullptr), static_cast<void*>(&foreign), static_cast<void*>(this)}) {
    gpumem_block block{};
    block.struct_bytes = sizeof block;
    std::vector<row> rows{{"record_use", [&] { return answer_of(cpp_->record_use(p, {})); }},
                          {"describe", [&] { return answer_of(cpp_->describe(p)); }},
                          {"gpumem_record_use", [&] { return answer_of(gpumem_record_use(c_, p, nullptr)); }},
                          {"gpumem_describe", [&] { return answer_of(gpumem_describe(c_, p, &block)); }}};
    const std::vector<row> frees{
        {"try_deallocate", [&] { return answer_of(cpp_->try_deallocate(p)); }},
        {"try_deallocate of a stream", [&] { return answer_of(cpp_->try_deallocate(p, {.stream = stream_ref{}})); }},
        {"try_deallocate of a size", [&] { return answer_of(cpp_->try_deallocate(p, {.bytes = 4096})); }},
        {"try_deallocate of a device", [&] { return answer_of(cpp_->try_deallocate(p, {.device = 1})); }},
        {"gpumem_free", [&] { return answer_of(gpumem_free(c_, p)); }},
        {"gpumem_free_on", [&] { return answer_of(gpumem_free_on(c_, p, nullptr)); }}};
    if (p != nullptr) {
      rows.insert(rows.end(), frees.begin(), frees.end());
    } else {
      for (const row& r : frees) EXPECT_EQ(r.call().code, errc::ok) << r.function << " of null is nothing";
    }
    expect_each(rows, errc::unknown_pointer, "block");
  }
}

TEST_F(Misuse, ADeadStreamIsADeviceError) {
  const stream_ref was = device_.create_stream();
  cpp_->deallocate(cpp_->allocate(8192, was));  // leaves cached blocks of the stream
  ASSERT_TRUE(cpp_->stream_release(was).ok());
  ASSERT_TRUE(device_.destroy_stream(was).ok());
  for (const stream_ref dead : {was, stream_ref{this}}) {
    void* out = nullptr;
    std::uint64_t graph = 0;
    expect_each({{"try_allocate", [&] { return answer_of(cpp_->try_allocate({.bytes = 8192, .stream = dead})); }},
                 {"try_allocate, aligned",
                  [&] { return answer_of(cpp_->try_allocate({.bytes = 8192, .stream = dead, .alignment = 4096})); }},
                 {"record_use", [&] { return answer_of(cpp_->record_use(block_, dead)); }},
                 {"stream_release", [&] { return answer_of(cpp_->stream_release(dead)); }},
                 {"capture_begin", [&] { return answer_of(cpp_->capture_begin(dead)); }},
                 {"gpumem_allocate", [&] { return answer_of(gpumem_allocate(c_, 8192, 0, dead.handle, &out)); }},
                 {"gpumem_free_on", [&] { return answer_of(gpumem_free_on(c_, c_block_, dead.handle)); }},
                 {"gpumem_record_use", [&] { return answer_of(gpumem_record_use(c_, c_block_, dead.handle)); }},
                 {"gpumem_stream_release", [&] { return answer_of(gpumem_stream_release(c_, dead.handle)); }},
                 {"gpumem_capture_begin", [&] { return answer_of(gpumem_capture_begin(c_, dead.handle)); }}},
                errc::device_error, "is not a stream of this device");
    // A capture is identified by its handle, valid or not.
    EXPECT_EQ(cpp_->capture_end(dead).code(), errc::invalid_argument);
    EXPECT_EQ(gpumem_capture_end(c_, dead.handle, &graph), GPUMEM_INVALID_ARGUMENT);
  }
}

TEST_F(Misuse, AFreeOnADeadStreamThatTheBlocksPoolKnowsIsNone) {
  for (const int pool : {1, 0}) {  // handles are reused: at first the other pool knows none of that name
    const stream_ref was = device_.create_stream();
    void* c_was = nullptr;
    ASSERT_EQ(gpumem_simulated_stream(c_, pool, &c_was), GPUMEM_OK);
    void* const own = cpp_->allocate(8192, was, pool);
    void* const other = cpp_->allocate(8192, {}, pool);
    void* const logged = cpp_->allocate(8192, was, pool);
    void* c_own = nullptr;
    void* c_other = nullptr;
    ASSERT_EQ(gpumem_allocate(c_, 8192, pool, c_was, &c_own), GPUMEM_OK);
    ASSERT_EQ(gpumem_allocate(c_, 8192, pool, nullptr, &c_other), GPUMEM_OK);
    ASSERT_TRUE(device_.destroy_stream(was).ok());
    ASSERT_TRUE(dynamic_cast<sim_device&>(*c_->devices[0]).destroy_stream(stream_ref{c_was}).ok());
    expect_each(
        {{"try_deallocate", [&] { return answer_of(cpp_->try_deallocate(own, {.stream = was})); }},
         {"try_deallocate, another stream's", [&] { return answer_of(cpp_->try_deallocate(other, {.stream = was})); }},
         {"gpumem_free_on", [&] { return answer_of(gpumem_free_on(c_, c_own, c_was)); }},
         {"gpumem_free_on, another stream's", [&] { return answer_of(gpumem_free_on(c_, c_other, c_was)); }}},
        errc::ok, "");
    cpp_->deallocate(logged, {.stream = was});
    EXPECT_EQ(cpp_->stats(pool)->live_blocks, pool == 0 ? 1U : 0U) << "all but `block_`";
    EXPECT_EQ(cpp_->stats(pool)->misuses, 0U);
    EXPECT_EQ(cpp_->try_allocate({.bytes = 8192, .stream = was, .device = pool}).code(), errc::device_error);
  }
}

}  // namespace
}  // namespace gpumem
