/// The sweep over the ranks of an MPI job, with more ranks than cores.
#include <signal.h>

#include <thread>

#include "processes.hpp"

namespace gpumem::bench::sweep {
namespace {

#ifdef GPUMEM_MPIRUN

class Ranks : public Sweep {
 protected:
  /// Disables the leak check of sanitized builds: Open MPI leaks in plugins that are unloaded by then. Its folder is in
  /// the test's own: a run fails where another one has just made the folder that all runs of a user share in /tmp.
  std::string ranks(int count, const std::string& words, const std::string& more = "") {
    return "env -i PATH=\"$PATH\" HOME=\"$HOME\" TMPDIR='" + path("") +
           "' OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
           "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0 "
           "ASAN_OPTIONS=detect_leaks=0 "
           "'" GPUMEM_MPIRUN "' " +
           more + " -n " + std::to_string(count) + " '" GPUMEM_BENCH_MPI_PROGRAM "' " + words;
  }
  std::string sweep_arguments(const std::string& out) {
    return "sweep '" + path("manifest.json") + "' -o '" + path(out) + "'";
  }
  /// The process of a rank; 0 if it does not appear within a minute.
  static pid_t rank_of(pid_t mpirun, const std::string& rank) {
    pid_t found = 0;
    (void)eventually([&] {
      for (const pid_t each : descendants_of(mpirun)) {
        const bool own = command_line_of(each).find("gpumem_bench_mpi sweep") != std::string::npos &&
                         command_line_of(each).find("mpirun") == std::string::npos;
        if (own && (variable_of(each, "OMPI_COMM_WORLD_RANK") == rank || variable_of(each, "PMI_RANK") == rank)) {
          found = each;
        }
      }
      return found != 0;
    });
    return found;
  }
};

TEST_F(Ranks, give_the_same_bytes_however_many_they_are) {
  const std::string manifest = small_manifest();
  ASSERT_EQ(bench(sweep_arguments("alone")).exit_status, 0);
  const std::string expected = merged(path("alone"));
  for (const int count : {1, 2, 4}) {
    const std::string out = "ranks" + std::to_string(count);
    background run{ranks(count, sweep_arguments(out)), folder_};
    const outcome got = run.wait();
    EXPECT_EQ(got.exit_status, 0) << got.err;
    EXPECT_THAT(got.out, testing::HasSubstr("42 units, 0 of them had results, 0 failed"));
    EXPECT_EQ(merged(path(out)), expected);
  }
}

TEST_F(Ranks, go_on_after_one_was_killed) {
  small_manifest();
  ASSERT_EQ(bench(sweep_arguments("alone")).exit_status, 0);
  {
    background run{ranks(2, sweep_arguments("out")), folder_};
    const pid_t victim = rank_of(run.pid(), "1");
    ASSERT_NE(victim, 0);
    EXPECT_TRUE(eventually([&] {
      return lines_in(path("out/results-rank0.jsonl")) + lines_in(path("out/results-rank1.jsonl")) >= 4 ||
             !run.running();
    }));
    ::kill(victim, SIGKILL);
    EXPECT_NE(run.wait().exit_status, 0);
  }
  background resumed{ranks(4, sweep_arguments("out")), folder_};
  const outcome got = resumed.wait();
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_EQ(merged(path("out")), merged(path("alone")));
}

/// Rank 0 holds the counter. Its unit is stopped, and rank 1 draws all others meanwhile. Over TCP, where calls to rank
/// 0 make progress only if rank 0 itself enters MPI.
TEST_F(Ranks, draw_on_while_rank_0_is_in_a_long_unit) {
  small_manifest();
  background run{ranks(2, sweep_arguments("out"), "--mca btl tcp,self --mca osc ^sm"), folder_};
  const pid_t root = rank_of(run.pid(), "0");
  ASSERT_NE(root, 0);
  const pid_t unit = stop_a_unit_of(root);
  ASSERT_NE(unit, 0);
  const std::uint64_t own = lines_in(path("out/results-rank0.jsonl"));
  EXPECT_TRUE(eventually([&] { return own + lines_in(path("out/results-rank1.jsonl")) == 41; }));
  std::this_thread::sleep_for(std::chrono::milliseconds{500});
  EXPECT_EQ(lines_in(path("out/results-rank0.jsonl")), own);
  EXPECT_TRUE(run.running());
  ::kill(unit, SIGCONT);
  const outcome got = run.wait();
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(got.out, testing::HasSubstr("42 units, 0 of them had results, 0 failed"));
}

TEST_F(Ranks, all_end_where_the_manifest_is_bad) {
  folder_.write("manifest.json", R"({"workloads":["training,ops=1"],"policies":["grwth"]})");
  background run{ranks(2, sweep_arguments("out")), folder_};
  const outcome got = run.wait();
  EXPECT_EQ(got.exit_status, 2);
  EXPECT_THAT(got.err, testing::HasSubstr("grwth"));
}

#else

TEST(Ranks, need_an_mpi) { GTEST_SKIP() << "no MPI was found when this was configured (libopenmpi-dev, openmpi-bin)"; }

#endif

}  // namespace
}  // namespace gpumem::bench::sweep
