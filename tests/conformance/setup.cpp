#include "setup.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>

#include "gpumem/policy.hpp"

namespace gpumem::conformance {
namespace {

constexpr std::array reuse_words{"device", "poll", "host"};
constexpr std::array id_words{"query", "notify"};

void set(settings& s, std::string_view option, const std::string& value) {
  if (value.empty()) return;
  const status ok = s.set(option, value);
  if (!ok) throw std::runtime_error{ok.message()};
}

}  // namespace

settings setup::to_settings() const {
  settings s;
  set(s, "policy", policy);
  set(s, "limit", limit);
  set(s, "pools", pools);
  s.reuse = reuse;
  s.stream_ids = stream_ids;
  s.thread_cache = thread_cache;
  return s;
}

std::ostream& operator<<(std::ostream& out, const setup& s) {
  return out << s.kind.name << ", " << s.policy << ", limit " << (s.limit.empty() ? "none" : s.limit) << ", "
             << (s.pools.empty() ? "one pool" : s.pools) << ", reuse "
             << reuse_words.at(static_cast<std::size_t>(s.reuse)) << ", ids "
             << id_words.at(static_cast<std::size_t>(s.stream_ids)) << (s.thread_cache ? "" : ", no thread caches");
}

std::vector<setup> every_setup() {
  std::vector<setup> out;
  for (const device_kind& kind : device_kinds()) {
    for (const policy_entry& entry : known_policies()) {
      for (const char* limit : {"", "512MiB", "70%", "80%free"}) {
        for (const char* pools : {"", "train:40%,eval:192MiB"}) {
          if (entry.needs.limit && *limit == '\0') continue;
          if (entry.needs.pools && *pools == '\0') continue;
          out.push_back({.kind = kind,
                         .policy = entry.name,
                         .limit = limit,
                         .pools = pools,
                         .reuse = stream_reuse::device,
                         .stream_ids = stream_id_mode::query});
          if (std::string_view{limit} != "512MiB") continue;
          setup off = out.back();
          off.thread_cache = false;
          out.push_back(std::move(off));
        }
      }
    }
  }
  return out;
}

std::vector<setup> every_stream_setup() {
  std::vector<setup> out;
  for (const device_kind& kind : device_kinds()) {
    for (const policy_entry& entry : known_policies()) {
      for (const stream_reuse reuse : {stream_reuse::device, stream_reuse::poll, stream_reuse::host}) {
        for (const stream_id_mode ids : {stream_id_mode::query, stream_id_mode::notify}) {
          for (const bool thread_cache : {true, false}) {
            out.push_back({.kind = kind,
                           .policy = entry.name,
                           .limit = "512MiB",
                           .pools = entry.needs.pools ? "512MiB" : "",
                           .reuse = reuse,
                           .stream_ids = ids,
                           .thread_cache = thread_cache});
          }
        }
      }
    }
  }
  return out;
}

std::string name_of(const ::testing::TestParamInfo<setup>& info) {
  const setup& s = info.param;
  std::string name = s.kind.name + "_" + s.policy + "_" + (s.limit.empty() ? "no_limit" : s.limit) + "_" +
                     (s.pools.find(',') == std::string::npos ? "one_pool" : "two_pools") + "_" +
                     reuse_words.at(static_cast<std::size_t>(s.reuse)) + "_" +
                     id_words.at(static_cast<std::size_t>(s.stream_ids)) + (s.thread_cache ? "" : "_no_thread_cache");
  const std::size_t share = name.find('%');
  if (share != std::string::npos) name.replace(share, 1, "percent");
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

void program::SetUp() {
  device_ = GetParam().kind.make();
  open(GetParam().to_settings());
}

void program::TearDown() {
  if (device_ == nullptr) return;  // device creation failed, which was reported
  if (allocator_ != nullptr) {
    for (int pool = 0; pool < pools(); ++pool) {
      const status proven = allocator_->check(pool);
      EXPECT_TRUE(proven.ok()) << proven.message();
    }
  }
  for (const std::string& h : device_->hazards()) ADD_FAILURE() << h;
  allocator_.reset();
}

void program::open(const settings& with) {
  allocator_.reset();
  const std::array<device*, 1> devices{&device_->edge()};
  auto opened = allocator::open(devices, with);
  ASSERT_TRUE(opened.ok()) << opened.why().message();
  allocator_ = std::move(*opened);
}

void* program::take(std::size_t bytes, stream_ref s, int pool, std::size_t alignment) {
  const result<void*> got =
      allocator_->try_allocate({.bytes = bytes, .stream = s, .device = pool, .alignment = alignment});
  EXPECT_TRUE(got.ok()) << bytes << " bytes in pool " << pool << ": " << got.why().message();
  if (got.ok()) device_->handed_out(*got, bytes, s);
  return got.ok() ? *got : nullptr;
}

void* program::try_take(std::size_t bytes, stream_ref s, int pool, oom_report* report) {
  const result<void*> got = allocator_->try_allocate({.bytes = bytes, .stream = s, .device = pool}, report);
  if (!got.ok()) {
    EXPECT_EQ(got.code(), errc::out_of_memory) << got.why().message();
    return nullptr;
  }
  device_->handed_out(*got, bytes, s);
  return *got;
}

void program::give(void* p, const free_args& stated) {
  device_->given_back(p);
  const status freed = allocator_->try_deallocate(p, stated);
  EXPECT_TRUE(freed.ok()) << freed.message();
}

std::vector<void*> program::fill(std::size_t bytes, stream_ref s, int pool) {
  std::vector<void*> blocks;
  while (void* p = try_take(bytes, s, pool)) blocks.push_back(p);
  return blocks;
}

void program::give_all(std::vector<void*>& blocks) {
  for (void* p : blocks) give(p);
  blocks.clear();
}

}  // namespace gpumem::conformance
