// Makes each of gpumem's driver calls fail once, in a run of its own: in a program with a capture, and with a peer.
// Checks that the error names the call, no memory is lost, and the program's capture stays valid. tests/reality/
// failing_start_test.cpp does the same for the preloaded library.
#include "world.hpp"

namespace gpumem::reality {
namespace {

/// Only gpumem's calls count towards the planned failure; the program's own calls do not.
class armed {
 public:
  armed() { simcuda::pause_failures(false); }
  ~armed() { simcuda::pause_failures(true); }
  armed(const armed&) = delete;
  armed& operator=(const armed&) = delete;
};

class FailingCalls : public Reality, public testing::WithParamInterface<std::pair<const char*, const char*>> {
 protected:
  void TearDown() override {
    simcuda::pause_failures(false);
    Reality::TearDown();
  }
  static bool names_a_call(const status& why) {
    const std::string& text = why.message();
    for (std::size_t i = text.find("cu"); i != std::string::npos; i = text.find("cu", i + 1)) {
      if (i + 2 < text.size() && text[i + 2] >= 'A' && text[i + 2] <= 'Z') return true;
    }
    return false;
  }
  /// Repeats the call if it failed; the second call must succeed.
  template <typename Call>
  static auto tried(const Call& call) {
    const armed now;
    auto first = call();
    if (first.ok()) return first;
    EXPECT_TRUE(names_a_call(first.why_failed())) << first.why_failed().message();
    return call();
  }
  struct one_status {
    status is;
    [[nodiscard]] bool ok() const { return is.ok(); }
    [[nodiscard]] const status& why_failed() const { return is; }
  };
  struct one_block {
    result<void*> is;
    [[nodiscard]] bool ok() const { return is.ok(); }
    [[nodiscard]] const status& why_failed() const { return is.why(); }
  };
  void* block(std::uint64_t bytes, CUstream s) {
    const one_block got = tried([&] { return one_block{allocator_->try_allocate({.bytes = bytes, .stream = {s}})}; });
    EXPECT_TRUE(got.ok()) << got.why_failed().message();
    if (!got.ok()) return nullptr;
    simcuda::device(0).handed_out(number(*got.is), bytes, simcuda::stream_of(s));
    return *got.is;
  }
  template <typename Call>
  static void ask(const Call& call) {
    const one_status done = tried([&] { return one_status{call()}; });
    EXPECT_TRUE(done.ok()) << done.is.message();
  }
  void free(void* p) {
    simcuda::device(0).given_back(number(p));
    ask([&] { return allocator_->try_deallocate(p); });
  }
  /// Opens everything and plans the failure. Opening itself does not count towards it.
  void begin_run(unsigned nth, const options& with) {
    open(with);
    simcuda::pause_failures(true);
    simcuda::fail("*", nth, CUDA_ERROR_UNKNOWN);
  }
  void end_run() {
    EXPECT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
    EXPECT_EQ(allocator_->stats(0)->live_bytes, 0U);
    EXPECT_EQ(allocator_->stats(0)->reserved_bytes, simcuda::device(0).used_bytes());
    for (const hazard& h : simcuda::device(0).hazards()) ADD_FAILURE() << h.to_string();
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    allocator_.reset();
    device_.reset();
  }
  void capture_and_launch() {
    const bool tells = std::string_view{GetParam().second} == "notify";
    CUstream const s = stream();
    CUstream const other = stream();
    void* const shared = block(40 * mib, s);
    ask([&] { return allocator_->record_use(shared, {other}); });
    use(other, shared, mib);
    void* const plain = block(3 * mib, s);
    if (tells) ask([&] { return allocator_->capture_begin({s}); });
    begin(s);
    void* const first = block(2 * mib, s);
    free(shared);
    use(s, first, mib);
    free(first);
    void* const kept = block(5 * mib, s);
    void* const beside = block(7 * mib, other);
    CUgraph const graph = end(s);
    if (tells) {
      const armed now;
      const result<graph_ref> left = allocator_->capture_end({s});
      ASSERT_TRUE(left.ok()) << left.why().message();
      ASSERT_TRUE(allocator_->graph_release(*left).ok());
    }
    CUgraphExec exec = nullptr;
    ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    if (!tells) {
      ASSERT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
    }
    ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    simcuda::finish_destructors();
    void* const after = block(60 * mib, other);
    for (void* p : {kept, beside, plain, after}) free(p);
    simcuda::device(0).advance_by(10'000'000);
    free(block(200 * mib, other));
    if (tells) ask([&] { return allocator_->stream_release({other}); });
    const armed now;
    static_cast<void>(allocator_->trim(0));
  }
};

TEST_P(FailingCalls, NoneOfThemSpoilsACaptureOrLosesAnything) {
  constexpr unsigned far_more_than_there_are = 2000;
  unsigned failed = 0;
  for (unsigned nth = 1; nth < far_more_than_there_are && !HasFailure(); ++nth) {
    SCOPED_TRACE(testing::Message() << "call " << nth);
    begin_run(nth, {{"policy", GetParam().first}, {"stream_ids", GetParam().second}, {"limit", "400MiB"}});
    capture_and_launch();
    const bool all_done = simcuda::failure_planned();
    end_run();
    if (all_done) break;
    ++failed;
  }
  EXPECT_GT(failed, 10U) << "calls that failed, one a run";
  open();
}

TEST_P(FailingCalls, NorDoThoseOfAPeersSetup) {
  unsigned failed = 0;
  for (unsigned nth = 1; nth < 2000 && !HasFailure(); ++nth) {
    SCOPED_TRACE(testing::Message() << "call " << nth);
    begin_run(nth, {{"policy", "expandable"}, {"stream_ids", GetParam().second}});
    CUcontext second = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    CUstream const s = stream();
    void* const before = block(30 * mib, s);
    ask([&] { return allocator_->enable_peer(0, 1); });
    void* const after = block(30 * mib, s);
    ASSERT_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxEnablePeerAccess(context_, 0), CUDA_SUCCESS);
    for (void* p : {before, after}) {
      EXPECT_EQ(cuMemsetD8Async(static_cast<CUdeviceptr>(number(p)), 0, mib, nullptr), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS) << "the peer reaches both";
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    for (void* p : {before, after}) free(p);
    const bool all_done = simcuda::failure_planned();
    end_run();
    if (all_done) break;
    ++failed;
  }
  EXPECT_GT(failed, 5U) << "calls that failed, one a run";
  open();
}

INSTANTIATE_TEST_SUITE_P(Ways, FailingCalls,
                         testing::Values(std::pair{"caching", "query"}, std::pair{"caching", "notify"},
                                         std::pair{"expandable", "query"}, std::pair{"expandable", "notify"}),
                         [](const auto& i) { return std::string{i.param.first} + "_" + i.param.second; });

}  // namespace
}  // namespace gpumem::reality
