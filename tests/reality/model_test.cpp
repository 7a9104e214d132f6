// Random programs over the harsh simulated driver, checked against a list: two devices, two contexts on the first,
// streams that come and go, unannounced captures, graphs that are launched and destroyed, uses across streams, contexts
// and devices.
//
// After each request: no block overlaps a live block or a live graph's memory. At each end of a capture: it is still
// valid. At the end of a run: the referee reports no hazard, all invariants hold, and all memory goes back.
// GPUMEM_REALITY_OPS (operations in all; one million, fewer under a sanitizer) and GPUMEM_REALITY_SEED repeat a failure
// or make it longer.
#include <cstdlib>
#include <map>
#include <random>

#include "environment_number.hpp"
#include "world.hpp"

extern "C" CUresult CUDAAPI cuCtxCreate_v2(CUcontext*, unsigned int, CUdevice);

namespace gpumem::reality {
namespace {

struct way {
  const char* policy;
  const char* ids;
  const char* reuse;
  bool ends_told;  ///< where captures are noticed: `captures_ended` after each
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t usual_operations = 50'000;
#else
constexpr std::uint64_t usual_operations = 1'000'000;
#endif

class Model : public testing::TestWithParam<way> {
 protected:
  struct stream {
    CUstream handle = nullptr;
    unsigned generation = 0;  ///< handles are reused
    int device = 0;
    CUcontext in = nullptr;
    bool requests = true;  ///< false: of the further context, which only uses what others allocate
    unsigned capture = 0;  ///< the number of the graph; 0: none
  };
  struct block {
    std::uint64_t bytes = 0;
    int device = 0;
    std::size_t of = 0;  ///< stream slot
    unsigned generation = 0;
    unsigned graph = 0;
    bool shared = false;
    unsigned users = 0;  ///< by the streams' places: which others use it
  };
  struct graph {
    CUgraphExec exec = nullptr;
    int device = 0;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  };

  void SetUp() override {
    simcuda::configure({.devices = 2, .bytes = 256 * mib});
    const auto* const driver = *resolve_cuda_driver(reinterpret_cast<void*>(&cuGetProcAddress));
    for (int d = 0; d < 2; ++d) {
      ASSERT_EQ(cuDevicePrimaryCtxRetain(&contexts_.at(static_cast<std::size_t>(d)), d), CUDA_SUCCESS);
      devices_.push_back(*open_cuda_device({.ordinal = d, .driver = driver, .peers = {1 - d}}));
    }
    ASSERT_EQ(cuCtxCreate_v2(&contexts_[2], 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxEnablePeerAccess(contexts_[1], 0), CUDA_SUCCESS);
    for (const auto& [from, to] : {std::pair{0U, 1U}, std::pair{1U, 0U}}) {
      ASSERT_EQ(cuCtxSetCurrent(contexts_.at(from)), CUDA_SUCCESS);
      ASSERT_EQ(cuCtxEnablePeerAccess(contexts_.at(to), 0), CUDA_SUCCESS);
    }
    settings s;
    for (const auto& [name, value] : {std::pair{"policy", GetParam().policy},
                                      {"stream_ids", GetParam().ids},
                                      {"stream_reuse", GetParam().reuse},
                                      {"limit", "192MiB"}}) {
      ASSERT_TRUE(s.set(name, value).ok()) << name;
    }
    std::array<device*, 2> raw{devices_[0].get(), devices_[1].get()};
    allocator_ = *allocator::open(raw, s);
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      streams_[i].in = contexts_.at(i < 3 ? 0 : i < 6 ? 1 : 2);
      streams_[i].device = i < 3 || i >= 6 ? 0 : 1;
      streams_[i].requests = i < 6;
      create(streams_[i]);
    }
  }
  void TearDown() override {
    allocator_.reset();
    devices_.clear();
    static_cast<void>(cuCtxSetCurrent(nullptr));
  }

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool tells() const { return std::string_view{GetParam().ids} == "notify"; }

  void create(stream& s) {
    ++s.generation;
    ASSERT_EQ(cuCtxSetCurrent(s.in), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&s.handle, below(2) == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT), CUDA_SUCCESS);
  }
  void renew(stream& s) {
    if (s.capture != 0) return;
    // A stream lives until the blocks that it uses are freed, unless the program tells of its end.
    const auto uses = [&](const auto& each) { return (each.second.users >> (&s - streams_.data()) & 1U) != 0; };
    if (!tells() && std::any_of(live_.begin(), live_.end(), uses)) return;
    if (tells()) {
      ASSERT_TRUE(allocator_->stream_release({s.handle}).ok());
    }
    ASSERT_EQ(cuStreamDestroy(s.handle), CUDA_SUCCESS);
    create(s);
  }
  static void order(const stream& behind, const stream& first) {
    CUevent e = nullptr;
    ASSERT_EQ(cuCtxSetCurrent(first.in), CUDA_SUCCESS);
    ASSERT_EQ(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(e, first.handle), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(behind.in), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(behind.handle, e, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuEventDestroy(e), CUDA_SUCCESS);
  }
  static void work(const stream& s, std::uint64_t at, std::uint64_t bytes, std::uint64_t ns) {
    ASSERT_EQ(cuCtxSetCurrent(s.in), CUDA_SUCCESS);
    simcuda::use(s.handle, ns, at, bytes);
  }

  void allocate(std::size_t slot) {
    stream& s = streams_.at(slot);
    if (!s.requests) return;
    const std::uint64_t bytes = (std::uint64_t{512} << below(14)) + 512 * below(40);
    const auto got = allocator_->try_allocate({.bytes = bytes, .stream = {s.handle}, .device = s.device});
    if (!got) {
      ASSERT_EQ(got.code(), errc::out_of_memory) << got.why().message();
      ++refused_;
      return;
    }
    const std::uint64_t at = number(*got);
    const auto next = live_.lower_bound(at);
    ASSERT_TRUE(next == live_.end() || at + bytes <= next->first) << "it overlaps a live block";
    ASSERT_TRUE(next == live_.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= at)
        << "it begins inside a live block";
    for (const auto& [id, g] : graphs_) {
      if (id == s.capture) continue;
      for (const auto& [begin, size] : g.ranges) {
        ASSERT_TRUE(at + bytes <= begin || begin + size <= at) << "it is the memory of graph " << id << ", which lives";
      }
    }
    live_[at] = {.bytes = bytes, .device = s.device, .of = slot, .generation = s.generation, .graph = s.capture};
    if (s.capture != 0) graphs_[s.capture].ranges.emplace_back(at, bytes);
    simcuda::device(s.device).handed_out(at, bytes, simcuda::stream_of(s.handle));
    work(s, at, bytes, 1 + below(200'000));
  }
  std::map<std::uint64_t, block>::iterator any_block() {
    if (live_.empty()) return live_.end();
    const auto around = live_.lower_bound(std::prev(live_.end())->first - below(64 * mib));
    return below(2) == 0 || around == live_.end() ? live_.begin() : around;
  }
  /// The block's stream, if it still exists and is in the same capture as at the allocation.
  stream* owner_of(const block& b) {
    stream& s = streams_.at(b.of);
    return s.generation == b.generation && s.capture == b.graph ? &s : nullptr;
  }
  void release_one(std::map<std::uint64_t, block>::iterator it) {
    if (it == live_.end()) return;
    const block b = it->second;
    const std::uint64_t at = it->first;
    free_args stated;
    stream* const own = owner_of(b);
    stream& other = streams_.at(below(6));
    if (own != nullptr && !b.shared && b.graph == 0 && other.capture == 0 && other.device == b.device &&
        below(3) == 0) {
      order(other, *own);
      stated.stream = stream_ref{other.handle};
    }
    live_.erase(it);
    simcuda::device(b.device).given_back(at);
    const status freed = allocator_->try_deallocate(reinterpret_cast<void*>(at), stated);
    ASSERT_TRUE(freed.ok()) << freed.message();
  }
  void share(std::map<std::uint64_t, block>::iterator it) {
    if (it == live_.end()) return;
    stream* const own = owner_of(it->second);
    stream& other = streams_.at(below(streams_.size()));
    if (own == nullptr || own->capture != 0 || other.capture != 0 || &other == own) return;
    // The simulated devices have separate clocks: a wait across them is a host wait, which would invalidate a capture.
    const auto captures = [](const stream& s) { return s.capture != 0; };
    if (other.device != own->device && std::any_of(streams_.begin(), streams_.end(), captures)) return;
    order(other, *own);
    const status noted = allocator_->record_use(reinterpret_cast<void*>(it->first), {other.handle});
    ASSERT_TRUE(noted.ok()) << noted.message();
    it->second.shared = true;
    it->second.users |= 1U << (&other - streams_.data());
    if (other.device == own->device) {
      work(other, it->first, it->second.bytes, 1 + below(500'000));
    } else {  // of which the other device's referee knows nothing
      simcuda::device(other.device).enqueue(simcuda::stream_of(other.handle), 1 + below(500'000));
    }
  }
  void begin_capture(std::size_t slot) {
    stream& s = streams_.at(slot);
    if (!s.requests || s.capture != 0 || graphs_.size() > 8) return;
    if (tells()) {
      ASSERT_TRUE(allocator_->capture_begin({s.handle}).ok());
    }
    ASSERT_EQ(cuCtxSetCurrent(s.in), CUDA_SUCCESS);
    const auto mode = below(2) == 0 ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_GLOBAL;
    ASSERT_EQ(cuStreamBeginCapture(s.handle, mode), CUDA_SUCCESS);
    s.capture = ++captures_;
    graphs_[s.capture].device = s.device;
    allocate(slot);  // by which it is noticed
  }
  void end_capture(stream& s) {
    if (s.capture == 0) return;
    CUgraph made = nullptr;
    ASSERT_EQ(cuCtxSetCurrent(s.in), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamEndCapture(s.handle, &made), CUDA_SUCCESS) << "the program's capture was spoilt";
    graph& g = graphs_[s.capture];
    ASSERT_EQ(cuGraphInstantiateWithFlags(&g.exec, made, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphDestroy(made), CUDA_SUCCESS);
    s.capture = 0;
    if (tells()) {
      ASSERT_TRUE(allocator_->capture_end({s.handle}).ok());
    } else if (GetParam().ends_told) {
      ASSERT_TRUE(allocator_->captures_ended(s.device).ok());
    }
  }
  void launch_or_destroy(bool destroy) {
    for (auto it = graphs_.begin(); it != graphs_.end(); ++it) {
      if (it->second.exec == nullptr || below(2) == 0) continue;
      stream& on = streams_.at(below(6));
      if (destroy) {
        ASSERT_EQ(cuGraphExecDestroy(it->second.exec), CUDA_SUCCESS);
        graphs_.erase(it);
        if (below(2) == 0) simcuda::finish_destructors();
      } else if (on.capture == 0 && on.device == it->second.device) {
        ASSERT_EQ(cuCtxSetCurrent(on.in), CUDA_SUCCESS);
        ASSERT_EQ(cuGraphLaunch(it->second.exec, on.handle), CUDA_SUCCESS);
      }
      return;
    }
  }
  void step() {
    const std::uint64_t what = below(1000);
    const std::size_t slot = below(streams_.size());
    if (what < 350) return allocate(slot);
    if (what < 700) return release_one(any_block());
    if (what < 780) return share(any_block());
    if (what < 820) return renew(streams_.at(slot));
    if (what < 845) return begin_capture(slot);
    if (what < 875) return end_capture(streams_.at(slot));
    if (what < 900) return launch_or_destroy(false);
    if (what < 925) return launch_or_destroy(true);
    if (what < 990) {
      for (int d = 0; d < 2; ++d) simcuda::device(d).advance_by(below(1'000'000));
      return;
    }
    if (what < 998) return static_cast<void>(allocator_->trim(static_cast<int>(below(2))));
    for (int d = 0; d < 2; ++d) ASSERT_TRUE(allocator_->check(d).ok()) << allocator_->check(d).message();
  }
  void finish() {
    for (stream& s : streams_) end_capture(s);
    while (!live_.empty() && !HasFatalFailure()) release_one(live_.begin());
    while (!graphs_.empty() && !HasFatalFailure()) launch_or_destroy(true);
    simcuda::finish_destructors();
    for (std::size_t i = 0; i < 6; ++i) {  // by which gpumem learns of the ends and of the graphs
      allocate(i);
    }
    while (!live_.empty() && !HasFatalFailure()) release_one(live_.begin());
    for (int d = 0; d < 2; ++d) {
      simcuda::device(d).advance_by(10'000'000'000);
      ASSERT_TRUE(allocator_->check(d).ok()) << allocator_->check(d).message();
      ASSERT_TRUE(allocator_->trim(d).ok());
      EXPECT_EQ(allocator_->stats(d)->leaked_bytes, 0U);
      if (std::string_view{GetParam().policy} != "growth") {
        EXPECT_EQ(allocator_->stats(d)->reserved_bytes, 0U) << "device " << d << ": memory that never comes back";
      }
      for (const hazard& h : simcuda::device(d).hazards()) ADD_FAILURE() << h.to_string();
    }
  }

  std::array<CUcontext, 3> contexts_{};
  std::vector<std::unique_ptr<device>> devices_;
  std::unique_ptr<allocator> allocator_;
  std::array<stream, 8> streams_;
  std::map<std::uint64_t, block> live_;
  std::map<unsigned, graph> graphs_;
  std::mt19937_64 random_;
  unsigned captures_ = 0;
  std::uint64_t refused_ = 0;
};

constexpr std::array ways{way{"caching", "query", "poll", false},    way{"caching", "query", "device", true},
                          way{"expandable", "query", "poll", true},  way{"growth", "query", "host", false},
                          way{"expandable", "notify", "poll", true}, way{"caching", "notify", "device", true}};

TEST_P(Model, ProgramsOnTwoDevicesFindNothing) {
  const std::uint64_t seed = environment_number("GPUMEM_REALITY_SEED", 1);
  const std::uint64_t operations = environment_number("GPUMEM_REALITY_OPS", usual_operations) / ways.size();
  random_.seed(seed);
  for (std::uint64_t i = 0; i < operations; ++i) {
    step();
    for (int d = 0; d < 2; ++d) {
      if (simcuda::device(d).hazard_count() == 0) continue;
      ADD_FAILURE() << "device " << d << ": " << simcuda::device(d).hazards().front().to_string();
    }
    ASSERT_FALSE(HasFailure()) << "operation " << i << " of seed " << seed;
  }
  finish();
  EXPECT_GT(captures_, operations / 200);
  EXPECT_LT(refused_, operations / 4) << "it is to be more than out-of-memory";
}
INSTANTIATE_TEST_SUITE_P(Ways, Model, testing::ValuesIn(ways), [](const auto& i) {
  return std::string{i.param.policy} + "_" + i.param.ids + "_" + i.param.reuse + (i.param.ends_told ? "_told" : "");
});

}  // namespace
}  // namespace gpumem::reality
