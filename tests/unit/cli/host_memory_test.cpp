// The memory of a simulated run on the host, from files as the kernel writes them.
#include "host_memory.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "temporary_folder.hpp"

namespace gpumem::cli {
namespace {

class HostMemory : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path file = root_.path() + "/" + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file} << text;
  }
  void process(int pid, int parent, std::uint64_t pages) {
    const std::string folder = "proc/" + std::to_string(pid);
    write(folder + "/stat", std::to_string(pid) + " (a name) of (two)) S " + std::to_string(parent) + " 1 1 0");
    write(folder + "/statm", "900000 " + std::to_string(pages) + " 1 1 0 1 0");
  }
  void host(std::uint64_t total_mib, std::uint64_t available_mib) {
    write("proc/meminfo", "MemTotal: " + std::to_string(total_mib << 10) +
                              " kB\nMemFree: 1 kB\nMemAvailable: " + std::to_string(available_mib << 10) + " kB\n");
  }
  static constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  const temporary_folder root_{"gpumem-host-memory-"};
};

TEST_F(HostMemory, IsThatOfTheCommandAndItsDescendantsAtTheirPeak) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  host(1000, 900);
  process(10, 1, 100);
  process(11, 10, 20);
  process(12, 11, 3);
  process(13, 1, 5000);
  host_memory read{root_.path()};
  read.look_at_run(10);
  EXPECT_EQ(read.peak_bytes(), 123 * page);
  process(12, 11, 1);
  read.look_at_run(10);
  EXPECT_EQ(read.peak_bytes(), 123 * page);
  read.look_at_host();
  EXPECT_EQ(read.total_bytes(), 1000 * mib);
  EXPECT_EQ(read.available_bytes(), 900 * mib);
}

TEST_F(HostMemory, IsShortBelowAFiftiethOr256MiB) {
  host_memory read{root_.path()};
  const auto short_at = [&](std::uint64_t total_mib, std::uint64_t available_mib) {
    host(total_mib, available_mib);
    read.look_at_host();
    return read.is_short();
  };
  EXPECT_FALSE(short_at(1000, 256));
  EXPECT_TRUE(short_at(1000, 255));
  EXPECT_FALSE(short_at(100'000, 2000));
  EXPECT_TRUE(short_at(100'000, 1999));
  write("proc/meminfo", "");
  read.look_at_host();
  EXPECT_FALSE(read.is_short()) << "it is not known";
}

TEST_F(HostMemory, IsTheControlGroupsWhereThatHasLess) {
  host(100'000, 90'000);
  write("sys/fs/cgroup/memory.max", std::to_string(8000 * mib));
  write("sys/fs/cgroup/memory.current", std::to_string(7000 * mib));
  write("sys/fs/cgroup/memory.stat", "anon 1\ninactive_file " + std::to_string(500 * mib) + "\n");
  host_memory read{root_.path()};
  read.look_at_host();
  EXPECT_EQ(read.total_bytes(), 8000 * mib);
  EXPECT_EQ(read.available_bytes(), 1500 * mib);
  write("sys/fs/cgroup/memory.max", "max");
  read.look_at_host();
  EXPECT_EQ(read.available_bytes(), 90'000 * mib);
}

}  // namespace
}  // namespace gpumem::cli
