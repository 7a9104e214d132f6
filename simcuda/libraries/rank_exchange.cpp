#include "rank_exchange.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <set>

#include "shared_cards.hpp"

namespace gpumem::simcuda {
namespace {

using count = std::atomic<std::uint64_t>;
using clock = std::chrono::steady_clock;
static_assert(count::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free, "processes share them");

constexpr int most_ranks = 512;
// The file is sparse: the table, then a log at every TiB.
constexpr std::uint64_t log_distance = std::uint64_t{1} << 40;
constexpr std::uint64_t file_bytes = std::uint64_t{1} << 62;
/// Frees bytes that were read in a log in pieces of at least this size.
constexpr std::uint64_t returned_bytes = std::uint64_t{1} << 20;

constexpr std::uint32_t is_absent = 0;
constexpr std::uint32_t is_joined = 1;
constexpr std::uint32_t has_left = 2;

std::string text_of(const char* call) { return std::string{call} + ": " + std::strerror(errno); }

/// Returns how long a rank waits for a living one.
std::chrono::seconds longest_wait() {
  const char* const text = std::getenv("SIMCUDA_NCCL_WAIT");
  const long long seconds = text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
  return std::chrono::seconds{seconds > 0 ? seconds : 1800};
}

std::uint64_t own_pid() { return static_cast<std::uint64_t>(::getpid()); }

/// The nonces of ids whose files this process holds open for ranks that have not joined yet.
struct held_files {
  std::mutex mutex;
  std::set<std::uint64_t> nonces;
};
held_files& files() {
  static auto* const all = new held_files;  // never destroyed: programs call while they exit
  return *all;
}

}  // namespace

struct rank_exchange::seat {
  count pid;
  count began;
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> signals;  ///< a futex: changes with each message for the rank
};

struct rank_exchange::table {
  count nonce;
  count ranks;
  count joined;
  // `ranks` seats follow, then the counters of the logs.
};

/// A log's offset in the file, its written bytes, and the bytes that each reader has read.
struct rank_exchange::log_place {
  std::uint64_t offset = 0;
  count* written = nullptr;
  count* read = nullptr;  ///< of the first reader; the others follow
  int readers = 1;
  int own_reader = 0;
  count* returned = nullptr;
};

std::string rank_exchange::make(exchange_id& id) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return "the size of files is limited (ulimit -f); expected unlimited, for what ranks exchange";
  }
  const int file = ::memfd_create("messages of simulated NCCL", MFD_CLOEXEC);
  if (file < 0) return text_of("memfd_create");
  if (::ftruncate(file, static_cast<off_t>(file_bytes)) != 0) {
    const std::string why = text_of("ftruncate");
    ::close(file);
    return why;
  }
  timespec clock_time{};
  ::clock_gettime(CLOCK_REALTIME, &clock_time);
  id.mark = exchange_mark;
  id.pid = own_pid();
  id.began = process_begin(id.pid);
  id.file = file;
  static std::atomic<std::uint64_t> made = 0;  // distinguishes ids made at the same time
  id.nonce = static_cast<std::uint64_t>(clock_time.tv_sec) * 1'000'000'000U +
             static_cast<std::uint64_t>(clock_time.tv_nsec) + made++;
  if (::pwrite(file, &id.nonce, sizeof id.nonce, 0) != static_cast<ssize_t>(sizeof id.nonce)) {
    const std::string why = text_of("pwrite");
    ::close(file);
    return why;
  }
  const std::lock_guard lock{files().mutex};
  files().nonces.insert(id.nonce);
  return {};
}

void rank_exchange::drop(const exchange_id& id) {
  if (id.mark != exchange_mark || id.pid != own_pid()) return;
  const std::lock_guard lock{files().mutex};
  if (files().nonces.erase(id.nonce) != 0) ::close(static_cast<int>(id.file));
}

rank_exchange::~rank_exchange() {
  leave();
  if (table_ != nullptr) ::munmap(table_, table_bytes_);
  if (file_ >= 0) ::close(file_);
}

std::string rank_exchange::join(const exchange_id& id, int ranks, int rank) {
  if (ranks > most_ranks) return "at most " + std::to_string(most_ranks) + " ranks can exchange messages";
  const std::string gone = "the process " + std::to_string(id.pid) + " that made the communicator's id has ended";
  if (process_begin(id.pid) != id.began) return gone;
  const std::string path = "/proc/" + std::to_string(id.pid) + "/fd/" + std::to_string(id.file);
  file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file_ < 0) return errno == ENOENT ? gone : text_of(path.c_str());
  std::uint64_t nonce = 0;
  if (::pread(file_, &nonce, sizeof nonce, 0) != static_cast<ssize_t>(sizeof nonce) || nonce != id.nonce) return gone;
  const auto all = static_cast<std::size_t>(ranks);
  // Each source has two logs to each target (one per lane) and one log to all, which every rank reads.
  table_bytes_ =
      sizeof(table) + all * sizeof(seat) + all * (2 * all + 1) * 2 * sizeof(count) + all * all * 3 * sizeof(count);
  void* const mapped = ::mmap(nullptr, table_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped == MAP_FAILED) return text_of("mmap");
  table_ = static_cast<table*>(mapped);
  ranks_ = ranks;
  rank_ = rank;
  id_ = id;
  std::uint64_t known = 0;
  if (!table_->ranks.compare_exchange_strong(known, all) && known != all) {
    return "the communicator has " + std::to_string(known) + " ranks for another process, " + std::to_string(ranks) +
           " here";
  }
  seat& own = seat_of(rank);
  std::uint64_t taken = 0;
  if (!own.pid.compare_exchange_strong(taken, own_pid())) {
    return "rank " + std::to_string(rank) + " is taken by process " + std::to_string(taken);
  }
  left_ = false;
  own.began = process_begin(own_pid());
  own.state.store(is_joined, std::memory_order_release);
  ++table_->joined;
  for (int each = 0; each < ranks_; ++each) signal(each);
  return {};
}

std::string rank_exchange::await_all() {
  const auto until = clock::now() + longest_wait();
  for (;;) {
    const std::uint32_t seen = seat_of(rank_).signals.load(std::memory_order_acquire);
    if (table_->joined.load(std::memory_order_acquire) == static_cast<std::uint64_t>(ranks_)) {
      drop(id_);
      id_ = {};
      return {};
    }
    if (left_) return "the communicator was aborted";
    const bool late = clock::now() >= until;
    std::string missing;
    for (int each = 0; each < ranks_; ++each) {
      const std::uint32_t state = seat_of(each).state.load(std::memory_order_acquire);
      if (state == is_absent) missing += (missing.empty() ? "" : ", ") + std::to_string(each);
      if (const std::string why = state == is_absent ? "" : ended(each); !why.empty()) return why;
    }
    if (late) {
      return "of " + std::to_string(ranks_) + " ranks did not come: " + missing +
             " (gpumem simulate --one-rank takes them to send what this one sends)";
    }
    await_signal(seen);
  }
}

std::string rank_exchange::send(int target, lane kind, message_head head, const void* values) {
  const std::string why = append(log_of(rank_, target, kind), head, values);
  signal(target);
  return why;
}

std::string rank_exchange::send_to_all(message_head head, const void* values) {
  const std::string why = append(log_of(rank_, ranks_, lane::collective), head, values);
  for (int each = 0; each < ranks_; ++each) {
    if (each != rank_) signal(each);
  }
  return why;
}

std::string rank_exchange::receive(int source, lane kind, const char* operation, message& result) {
  return take(source, log_of(source, rank_, kind), operation, result);
}

std::string rank_exchange::receive_from_all(int source, const char* operation, message& result) {
  return take(source, log_of(source, ranks_, lane::collective), operation, result);
}

void rank_exchange::leave() {
  if (table_ == nullptr || left_.exchange(true)) return;
  seat_of(rank_).state.store(has_left, std::memory_order_release);
  for (int each = 0; each < ranks_; ++each) signal(each);
  drop(id_);
  id_ = {};
}

std::string rank_exchange::name_of(int rank) const {
  const std::uint64_t pid = seat_of(rank).pid;
  return "rank " + std::to_string(rank) + (pid == 0 ? "" : " (process " + std::to_string(pid) + ")");
}

rank_exchange::seat& rank_exchange::seat_of(int rank) const { return reinterpret_cast<seat*>(table_ + 1)[rank]; }

/// Returns a log; `target` is `ranks_` for the log to all.
rank_exchange::log_place rank_exchange::log_of(int source, int target, lane kind) const {
  const auto all = static_cast<std::size_t>(ranks_);
  const std::size_t logs = all * (2 * all + 1);
  const bool to_all = target == ranks_;
  const std::size_t index = static_cast<std::size_t>(source) * (2 * all + 1) +
                            (to_all ? 2 * all : 2 * static_cast<std::size_t>(target) + static_cast<std::size_t>(kind));
  auto* const counters = reinterpret_cast<count*>(&seat_of(ranks_));
  count* const readers = counters + 2 * logs;
  const std::size_t first_reader = static_cast<std::size_t>(source) * 3 * all;
  return {.offset = (index + 1) * log_distance,
          .written = counters + index,
          .read = readers + first_reader +
                  (to_all ? 2 * all : 2 * static_cast<std::size_t>(target) + static_cast<std::size_t>(kind)),
          .readers = to_all ? ranks_ : 1,
          .own_reader = to_all ? rank_ : 0,
          .returned = counters + logs + index};
}

std::string rank_exchange::append(const log_place& log, const message_head& head, const void* values) const {
  const std::uint64_t written = log.written->load(std::memory_order_relaxed);
  message_head copy = head;
  iovec parts[2] = {{&copy, sizeof copy}, {const_cast<void*>(values), head.kept}};
  const auto wanted = static_cast<ssize_t>(sizeof copy + head.kept);
  if (::pwritev(file_, parts, head.kept != 0 ? 2 : 1, static_cast<off_t>(log.offset + written)) != wanted) {
    return text_of("the host has no memory for a message to another rank: pwritev");
  }
  log.written->store(written + static_cast<std::uint64_t>(wanted), std::memory_order_release);
  return {};
}

std::string rank_exchange::take(int source, const log_place& log, const char* operation, message& result) {
  count& read = log.read[log.own_reader];
  const std::uint64_t begin = read.load(std::memory_order_relaxed);
  const auto until = clock::now() + longest_wait();
  for (;;) {
    const std::uint32_t seen = seat_of(rank_).signals.load(std::memory_order_acquire);
    if (log.written->load(std::memory_order_acquire) > begin) break;
    const std::string why = ended(source);
    // Check again: the rank may have sent its last message just before it ended.
    if (log.written->load(std::memory_order_acquire) > begin) break;
    if (left_) return std::string{operation} + ": the communicator was aborted";
    if (!why.empty()) return std::string{operation} + " waits for " + why;
    if (clock::now() >= until) {
      return std::string{operation} + " waited " + std::to_string(longest_wait().count()) + " s for " +
             name_of(source) + ", which runs and has not called it (SIMCUDA_NCCL_WAIT)";
    }
    await_signal(seen);
  }
  if (::pread(file_, &result.head, sizeof result.head, static_cast<off_t>(log.offset + begin)) !=
      static_cast<ssize_t>(sizeof result.head)) {
    return text_of("pread");
  }
  result.values.resize(result.head.kept);
  const std::uint64_t values_offset = log.offset + begin + sizeof result.head;
  if (result.head.kept != 0 && ::pread(file_, result.values.data(), result.head.kept,
                                       static_cast<off_t>(values_offset)) != static_cast<ssize_t>(result.head.kept)) {
    return text_of("pread");
  }
  read.store(begin + sizeof result.head + result.head.kept, std::memory_order_release);
  std::uint64_t all_read = log.written->load(std::memory_order_acquire);
  for (int each = 0; each < log.readers; ++each) {
    if (log.readers == 1 || each != source)
      all_read = std::min(all_read, log.read[each].load(std::memory_order_acquire));
  }
  std::uint64_t returned = log.returned->load();
  if (all_read >= returned + returned_bytes && log.returned->compare_exchange_strong(returned, all_read)) {
    static_cast<void>(::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                  static_cast<off_t>(log.offset + returned), static_cast<off_t>(all_read - returned)));
  }
  return {};
}

std::string rank_exchange::ended(int rank) const {
  const seat& peer = seat_of(rank);
  const std::uint32_t state = peer.state.load(std::memory_order_acquire);
  if (state == is_absent) return {};
  if (state == has_left) return name_of(rank) + ", which has left the communicator";
  if (peer.pid != own_pid() && process_begin(peer.pid) != peer.began) return name_of(rank) + ", which has ended";
  return {};
}

void rank_exchange::signal(int rank) const {
  std::atomic<std::uint32_t>& signals = seat_of(rank).signals;
  signals.fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, &signals, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void rank_exchange::await_signal(std::uint32_t seen) const {
  const timespec moment{0, 100'000'000};  // then check again whether the other ranks live
  ::syscall(SYS_futex, &seat_of(rank_).signals, FUTEX_WAIT, seen, &moment, nullptr, 0);
}

}  // namespace gpumem::simcuda
