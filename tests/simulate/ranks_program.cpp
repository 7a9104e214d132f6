// Ranks of a job over NCCL's stand-in, for ranks_test.cpp: `ranks_program SCENARIO RANKS`. The first process makes the
// communicator's id, forks the ranks, which use CUDA then, and ends with status 0 once all have ended.
#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

// The functions of NCCL that this program uses: the Toolkit does not contain its header.
extern "C" {
struct ncclUniqueId {
  char internal[128];
};
int ncclGetUniqueId(ncclUniqueId*);
int ncclCommInitRank(void**, int, ncclUniqueId, int);
int ncclCommInitAll(void**, int, const int*);
int ncclCommSplit(void*, int, int, void**, void*);
int ncclCommDestroy(void*);
int ncclCommAbort(void*);
int ncclCommCount(void*, int*);
int ncclCommUserRank(void*, int*);
const char* ncclGetLastError(void*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllReduce(const void*, void*, std::size_t, int, int, void*, void*);
int ncclReduce(const void*, void*, std::size_t, int, int, int, void*, void*);
int ncclReduceScatter(const void*, void*, std::size_t, int, int, void*, void*);
int ncclAllGather(const void*, void*, std::size_t, int, void*, void*);
int ncclBroadcast(const void*, void*, std::size_t, int, int, void*, void*);
int ncclAlltoAll(const void*, void*, std::size_t, int, void*, void*);
int ncclGather(const void*, void*, std::size_t, int, int, void*, void*);
int ncclScatter(const void*, void*, std::size_t, int, int, void*, void*);
int ncclSend(const void*, std::size_t, int, int, void*, void*);
int ncclRecv(void*, std::size_t, int, int, void*, void*);
int ncclRedOpCreatePreMulSum(int*, void*, int, int, void*);
}

namespace {

using number = std::int64_t;
using numbers = std::vector<number>;
constexpr int int32_type = 2;
constexpr int int64_type = 4;
constexpr int half_type = 6;
constexpr int float_type = 7;
constexpr int bfloat16_type = 9;
constexpr int sum = 0;
constexpr int maximum = 2;
constexpr int average = 4;

int ranks = 0;
int rank = 0;
void* world = nullptr;
bool failed = false;
bool taken_beside = false;  ///< a rank allocated as much as another rank holds

void expect(bool holds, const char* what) {
  if (holds) return;
  failed = true;
  std::printf("rank %d: not as expected: %s\n", rank, what);
}
void works(int result, const char* what) {
  if (result != 0) std::printf("rank %d: %s: %d: %s\n", rank, what, result, ncclGetLastError(nullptr));
  failed = failed || result != 0;
}

/// Memory on the card; the program copies values there and back.
template <typename Value>
struct card_values {
  explicit card_values(std::size_t values) : count{values} {
    expect(cudaMalloc(&at, count * sizeof(Value)) == cudaSuccess, "cudaMalloc");
  }
  explicit card_values(const std::vector<Value>& values) : card_values{values.size()} { write(values); }
  card_values(const card_values&) = delete;
  card_values& operator=(const card_values&) = delete;
  ~card_values() { cudaFree(at); }
  void write(const std::vector<Value>& values) {
    cudaMemcpy(at, values.data(), values.size() * sizeof(Value), cudaMemcpyHostToDevice);
  }
  [[nodiscard]] std::vector<Value> read() const {
    std::vector<Value> out(count);
    cudaMemcpy(out.data(), at, count * sizeof(Value), cudaMemcpyDeviceToHost);
    return out;
  }
  void* at = nullptr;
  std::size_t count;
};
using card_numbers = card_values<number>;

/// `factor * rank`, for each rank.
numbers of_each_rank(number factor) {
  numbers out;
  for (int each = 0; each < ranks; ++each) out.push_back(factor * each);
  return out;
}
number sum_of_ranks() { return static_cast<number>(ranks) * (ranks - 1) / 2; }

void reductions() {
  const card_numbers mine{numbers{rank, 100 - rank}};
  const card_numbers result{2};
  works(ncclAllReduce(mine.at, result.at, 2, int64_type, sum, world, nullptr), "ncclAllReduce");
  expect(result.read() == numbers{sum_of_ranks(), 100 * ranks - sum_of_ranks()}, "the sum");
  works(ncclAllReduce(mine.at, result.at, 2, int64_type, maximum, world, nullptr), "ncclAllReduce");
  expect(result.read() == numbers{ranks - 1, 100}, "the maximum");
  works(ncclAllReduce(mine.at, mine.at, 2, int64_type, sum, world, nullptr), "ncclAllReduce in place");
  expect(mine.read() == numbers{sum_of_ranks(), 100 * ranks - sum_of_ranks()}, "the sum in place");
  const card_values<float> fractions{std::vector<float>{0.5F * static_cast<float>(rank)}};
  works(ncclAllReduce(fractions.at, fractions.at, 1, float_type, average, world, nullptr), "the average");
  expect(fractions.read()[0] == 0.5F * static_cast<float>(ranks - 1) / 2, "the average");
  // 1.5 and -2 in the two formats of 16 bits: with 3 ranks, -2 + 1.5 + 1.5 is 1.
  const card_values<std::uint16_t> halves{
      std::vector<std::uint16_t>{rank == 0 ? std::uint16_t{0xc000} : std::uint16_t{0x3e00}}};
  works(ncclAllReduce(halves.at, halves.at, 1, half_type, sum, world, nullptr), "ncclAllReduce of half");
  if (ranks == 3) expect(halves.read()[0] == 0x3c00, "the sum of half");
  const card_values<std::uint16_t> brains{
      std::vector<std::uint16_t>{rank == 0 ? std::uint16_t{0xc000} : std::uint16_t{0x3fc0}}};
  works(ncclAllReduce(brains.at, brains.at, 1, bfloat16_type, sum, world, nullptr), "ncclAllReduce of bfloat16");
  if (ranks == 3) expect(brains.read()[0] == 0x3f80, "the sum of bfloat16");
  float half_of = 0.5F;
  int scaled = 0;
  works(ncclRedOpCreatePreMulSum(&scaled, &half_of, float_type, 1, world), "ncclRedOpCreatePreMulSum");
  const card_values<float> twos{std::vector<float>{2}};
  works(ncclAllReduce(twos.at, twos.at, 1, float_type, scaled, world, nullptr), "a scaled sum");
  expect(twos.read()[0] == static_cast<float>(ranks), "the scaled sum");
  const card_numbers chunks{of_each_rank(10)};
  works(ncclReduceScatter(chunks.at, result.at, 1, int64_type, sum, world, nullptr), "ncclReduceScatter");
  expect(result.read()[0] == 10 * rank * ranks, "this rank's chunk of the sum");
  const card_numbers at_root{numbers{-1}};
  const card_numbers own{numbers{rank}};
  works(ncclReduce(own.at, at_root.at, 1, int64_type, sum, 1, world, nullptr), "ncclReduce");
  expect(at_root.read()[0] == (rank == 1 ? sum_of_ranks() : -1), "the sum at its root");
}

void copies() {
  const card_numbers mine{numbers{10 * rank}};
  const card_numbers all{static_cast<std::size_t>(ranks)};
  works(ncclAllGather(mine.at, all.at, 1, int64_type, world, nullptr), "ncclAllGather");
  expect(all.read() == of_each_rank(10), "a value of each rank");
  works(ncclBroadcast(mine.at, mine.at, 1, int64_type, 1, world, nullptr), "ncclBroadcast");
  expect(mine.read()[0] == 10, "the root's value");
  const card_numbers chunks{of_each_rank(100)};
  numbers with_rank = of_each_rank(100);
  for (number& each : with_rank) each += rank;
  const card_numbers sent{with_rank};
  works(ncclAlltoAll(sent.at, chunks.at, 1, int64_type, world, nullptr), "ncclAlltoAll");
  numbers wanted = of_each_rank(1);
  for (number& each : wanted) each += 100 * rank;
  expect(chunks.read() == wanted, "each rank's chunk for this one");
  const card_numbers own{numbers{rank + 1}};
  const card_numbers gathered{numbers(static_cast<std::size_t>(ranks), -1)};
  works(ncclGather(own.at, gathered.at, 1, int64_type, 0, world, nullptr), "ncclGather");
  numbers ones = of_each_rank(1);
  for (number& each : ones) each = rank == 0 ? each + 1 : -1;
  expect(gathered.read() == ones, "all at the root");
  const card_numbers scattered{1};
  works(ncclScatter(sent.at, scattered.at, 1, int64_type, 1, world, nullptr), "ncclScatter");
  expect(scattered.read()[0] == 100 * rank + 1, "the root's chunk");
}

void messages() {
  const int next = (rank + 1) % ranks;
  const int before = (rank + ranks - 1) % ranks;
  const card_numbers mine{numbers{1000 + rank}};
  const card_numbers got{1};
  // In a ring, each receives before it sends.
  works(ncclGroupStart(), "ncclGroupStart");
  works(ncclRecv(got.at, 1, int64_type, before, world, nullptr), "ncclRecv");
  works(ncclSend(mine.at, 1, int64_type, next, world, nullptr), "ncclSend");
  works(ncclGroupEnd(), "ncclGroupEnd");
  expect(got.read()[0] == 1000 + before, "the value of the rank before");
  // More than fits one piece of a log; all are sent before the first is received.
  constexpr int times = 300;
  const card_numbers block{numbers(1024, rank)};
  for (int i = 0; i < times; ++i) works(ncclSend(block.at, 1024, int64_type, next, world, nullptr), "ncclSend");
  const card_numbers into{1024};
  for (int i = 0; i < times; ++i) {
    works(ncclRecv(into.at, 1024, int64_type, before, world, nullptr), "ncclRecv");
    if (into.read() != numbers(1024, before)) return expect(false, "each message of a long queue");
  }
  // A large message: its memory is not touched, but the ranks still meet.
  const card_numbers large{std::size_t{1} << 20};
  works(ncclAllReduce(large.at, large.at, large.count, int64_type, sum, world, nullptr), "a large ncclAllReduce");
}

void groups() {
  void* part = nullptr;
  works(ncclCommSplit(world, rank % 2, -rank, &part, nullptr), "ncclCommSplit");
  int count = 0;
  int own = -1;
  works(ncclCommCount(part, &count), "ncclCommCount");
  works(ncclCommUserRank(part, &own), "ncclCommUserRank");
  expect(count == (ranks + 1 - rank % 2) / 2, "ranks of this color");
  expect(own == (ranks - 1 - rank) / 2, "their order by falling rank");
  const card_numbers value{numbers{rank}};
  works(ncclBroadcast(value.at, value.at, 1, int64_type, 0, part, nullptr), "ncclBroadcast in a part");
  expect(value.read()[0] == (rank % 2 == (ranks - 1) % 2 ? ranks - 1 : ranks - 2), "the last rank of this color");
  works(ncclCommDestroy(part), "ncclCommDestroy");
  void* none = &count;
  works(ncclCommSplit(world, rank == 0 ? 0 : -1, 0, &none, nullptr), "ncclCommSplit without a color");
  expect((none == nullptr) == (rank != 0), "no communicator without a color");
}

/// All ranks in one process.
void one_process() {
  void* all[2] = {};
  works(ncclCommInitAll(all, 2, nullptr), "ncclCommInitAll");
  const card_numbers first{numbers{1}};
  const card_numbers second{numbers{2}};
  works(ncclGroupStart(), "ncclGroupStart");
  works(ncclAllReduce(first.at, first.at, 1, int64_type, sum, all[0], nullptr), "ncclAllReduce");
  works(ncclAllReduce(second.at, second.at, 1, int64_type, sum, all[1], nullptr), "ncclAllReduce");
  works(ncclGroupEnd(), "ncclGroupEnd");
  expect(first.read()[0] == 3 && second.read()[0] == 3, "the sum of both");
  for (void* each : all) works(ncclCommDestroy(each), "ncclCommDestroy");
}

/// Ends after the other ranks have printed why they cannot go on.
int say_error(int result) {
  std::printf("rank %d: %d: %s\n", rank, result, ncclGetLastError(world));
  std::fflush(stdout);
  return 0;
}

int all_reduce(std::size_t count = 1) {
  const card_numbers value{numbers(count, rank)};
  return ncclAllReduce(value.at, value.at, count, int64_type, sum, world, nullptr);
}

int take(std::size_t mib) {
  void* at = nullptr;
  return cudaMalloc(&at, mib << 20) == cudaSuccess ? 0 : 1;
}

/// Runs one rank; returns its exit status.
int perform(const std::string& scenario, const int (&gate)[2]) {
  if (scenario == "moves") {
    reductions();
    copies();
    messages();
    groups();
    return failed ? 1 : 0;
  }
  if (scenario == "exits" && rank == 1) return 3;
  if (scenario == "killed" && rank == 1) raise(SIGKILL);
  if (scenario == "aborts" && rank == 1) {
    ncclCommAbort(world);
    char end = 0;
    return read(gate[0], &end, 1) < 0 ? 1 : 0;  // lives until the other has ended
  }
  if (scenario == "differs" && rank == 1) {
    const card_numbers value{numbers{1}};
    const card_numbers all{static_cast<std::size_t>(ranks)};
    return say_error(ncclAllGather(value.at, all.at, 1, int32_type, world, nullptr));
  }
  if (scenario == "silent" && rank == 1) {
    char end = 0;
    return read(gate[0], &end, 1) < 0 ? 1 : 0;
  }
  if (scenario == "share") {
    const card_numbers value{numbers{rank}};  // its 2 MiB are held while the other rank allocates
    const auto meet = [&] {
      works(ncclAllReduce(value.at, value.at, 1, int64_type, sum, world, nullptr), "ncclAllReduce");
    };
    if (rank == 0) expect(take(600) == 0, "600 MiB");
    meet();
    if (rank == 1) taken_beside = take(600) == 0;
    meet();
    std::printf("%s", rank == 1 && taken_beside ? "both have 600 MiB\n" : "");
    return failed ? 1 : 0;
  }
  return say_error(all_reduce());
}

}  // namespace

int main(int arguments, char** words) {
  if (arguments != 3) return 2;
  const std::string scenario = words[1];
  ranks = std::atoi(words[2]);
  if (scenario == "one_process") {
    one_process();
    std::puts("done");
    return failed ? 1 : 0;
  }
  ncclUniqueId id;
  int gate[2];  // closed once the first rank has ended
  if (ncclGetUniqueId(&id) != 0 || pipe(gate) != 0) return 2;
  std::vector<pid_t> processes;
  const int started = scenario == "alone" ? 1 : ranks;
  for (rank = 0; rank < started; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      close(gate[1]);
      int cards = 1;
      cudaGetDeviceCount(&cards);
      cudaSetDevice(rank % cards);
      if (const int result = ncclCommInitRank(&world, ranks, id, rank); result != 0) std::exit(say_error(result));
      const int status = perform(scenario, gate);
      std::fflush(stdout);
      if (scenario == "exits") _exit(status);  // as Python's multiprocessing ends
      std::exit(status);
    }
    processes.push_back(child);
  }
  for (std::size_t i = 0; i < processes.size(); ++i) {
    int status = 0;
    waitpid(processes[i], &status, 0);
    if (i == 0) close(gate[1]);
  }
  std::puts("all ranks have ended");
  return 0;
}
