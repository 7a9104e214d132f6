#include "shared_cards.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace gpumem::simcuda {
namespace {

constexpr std::uint64_t layout = 0x73686172'00000001;  // "shar", 1

using shared_count = std::atomic<std::uint64_t>;
static_assert(shared_count::is_always_lock_free, "processes share them");

/// Returns the file of a name: in /dev/shm, or the name itself if it is an absolute path.
std::string path_of(std::string_view name) {
  if (name.starts_with('/')) return std::string{name};
  return "/dev/shm/gpumem-simulated-" + std::to_string(::getuid()) + "-" + std::string{name};
}

}  // namespace

std::uint64_t process_begin(std::uint64_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[1024];
  const ssize_t got = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (got <= 0) return 0;
  text[got] = '\0';
  const char* cursor = std::strrchr(text, ')');  // the process name may contain any character
  if (cursor == nullptr || cursor[1] == '\0' || cursor[2] == 'Z' || cursor[2] == 'X') return 0;
  ++cursor;
  for (int field = 3; field < 22 && cursor != nullptr; ++field) cursor = std::strchr(cursor + 1, ' ');
  return cursor != nullptr ? std::strtoull(cursor, nullptr, 10) : 0;
}

struct shared_cards::region {
  struct process {
    shared_count pid;  ///< 0: the slot is free
    shared_count began;
    shared_count held[most_cards];

    [[nodiscard]] bool alive() const {
      const std::uint64_t owner_pid = pid.load();
      return owner_pid != 0 && process_begin(owner_pid) == began.load();
    }
  };
  shared_count layout;  ///< 0: the file is new, and all other fields are 0 too
  shared_count cards;
  shared_count bytes;
  process processes[most_processes];

  [[nodiscard]] bool anybody() const {
    return std::any_of(std::begin(processes), std::end(processes), [](const process& entry) { return entry.alive(); });
  }
};

bool shared_cards::valid_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
             std::string_view::npos;
}

shared_cards::~shared_cards() {
  if (mine()) all_->processes[slot_].pid = 0;
  if (all_ != nullptr) ::munmap(all_, sizeof(region));
  if (file_ >= 0) ::close(file_);
}

bool shared_cards::map_file() {
  void* const mapping = ::mmap(nullptr, sizeof(region), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapping != MAP_FAILED) all_ = static_cast<region*>(mapping);
  return mapping != MAP_FAILED;
}

void shared_cards::lock() {
  while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
  }
}
void shared_cards::unlock() { static_cast<void>(::flock(file_, LOCK_UN)); }

std::string shared_cards::join(std::string_view name, int cards, std::uint64_t bytes_each) {
  const std::string path = path_of(name);
  const auto failed = [&](const char* operation) { return path + ": " + operation + ": " + std::strerror(errno); };
  if (!name.starts_with('/') && !valid_name(name)) return "a name of 1 to 64 letters, digits, _ and - is expected";
  if (cards > most_cards) return "at most " + std::to_string(most_cards) + " cards can be shared";
  for (struct stat found{}; file_ < 0;) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file_ < 0) return failed("open");
    lock();
    if (::fstat(file_, &found) == 0 && found.st_uid != ::geteuid()) {
      return path + ": belongs to user " + std::to_string(found.st_uid) + "; expected one of user " +
             std::to_string(::geteuid()) + ", who runs this program";
    }
    if (found.st_nlink != 0) break;
    ::close(file_);  // another process removed the file meanwhile
    file_ = -1;
  }
  if (::ftruncate(file_, sizeof(region)) != 0 || !map_file()) return failed("map");
  const bool in_use = all_->layout == layout && all_->anybody();
  if (in_use && (all_->bytes != bytes_each || all_->cards != static_cast<std::uint64_t>(cards))) {
    const std::string why = "its processes have " + std::to_string(all_->cards) + " cards of " +
                            std::to_string(all_->bytes) + " bytes, this one " + std::to_string(cards) + " of " +
                            std::to_string(bytes_each) + "; expected the same --card and --cards";
    unlock();
    return why;
  }
  if (!in_use) std::memset(static_cast<void*>(all_), 0, sizeof(region));
  all_->cards = static_cast<std::uint64_t>(cards);
  all_->bytes = bytes_each;
  all_->layout = layout;
  for (region::process& each : all_->processes) {  // clear the entries of a program that this process ran before
    if (each.pid == static_cast<std::uint64_t>(::getpid())) each.pid = 0;
  }
  const auto spare = std::find_if(std::begin(all_->processes), std::end(all_->processes),
                                  [](const region::process& entry) { return !entry.alive(); });
  if (spare != std::end(all_->processes)) {
    for (shared_count& held : spare->held) held = 0;
    spare->began = process_begin(static_cast<std::uint64_t>(::getpid()));
    spare->pid = static_cast<std::uint64_t>(::getpid());
    slot_ = static_cast<int>(spare - std::begin(all_->processes));
  }
  unlock();
  return slot_ >= 0 ? "" : std::to_string(most_processes) + " processes are in it, and more have no room";
}

bool shared_cards::watch(std::string_view name) {
  if (!name.starts_with('/') && !valid_name(name)) return false;
  file_ = ::open(path_of(name).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  struct stat found {};
  return file_ >= 0 && ::fstat(file_, &found) == 0 && found.st_uid == ::geteuid() &&
         static_cast<std::size_t>(found.st_size) >= sizeof(region) && map_file() && all_->layout == layout;
}

void shared_cards::remove_unused(std::string_view name) {
  shared_cards left;
  if (!left.watch(name)) return;
  left.lock();
  if (!left.all_->anybody()) ::unlink(path_of(name).c_str());
  left.unlock();
}

/// False in a forked child, which has a copy of the object.
bool shared_cards::mine() const {
  return slot_ >= 0 && all_->processes[slot_].pid == static_cast<std::uint64_t>(::getpid());
}

void shared_cards::publish(int card, std::uint64_t bytes) {
  if (card >= most_cards || slot_ < 0) return;
  auto& held = all_->processes[slot_].held[card];
  if (held != bytes && mine()) held = bytes;  // `mine` is a system call, and each driver function publishes
}

std::uint64_t shared_cards::held_by_others(int card) const {
  std::uint64_t sum = 0;
  if (card >= most_cards) return sum;
  for (int i = 0; i < most_processes; ++i) {
    const region::process& each = all_->processes[i];
    const std::uint64_t held = each.held[card];
    if (held != 0 && i != slot_ && each.alive()) sum += held;
  }
  return sum;
}

std::uint64_t shared_cards::began() const { return slot_ < 0 ? 0 : all_->processes[slot_].began.load(); }

bool shared_cards::lives(std::uint64_t pid, std::uint64_t began) const {
  return std::any_of(std::begin(all_->processes), std::end(all_->processes), [&](const region::process& entry) {
    return entry.pid == pid && entry.began == began && entry.alive();
  });
}

std::uint64_t shared_cards::card_bytes() const { return all_->bytes; }

std::vector<std::pair<int, std::uint64_t>> shared_cards::holders(int card) const {
  std::vector<std::pair<int, std::uint64_t>> holders;
  if (card >= most_cards) return holders;
  for (const region::process& each : all_->processes) {
    if (each.held[card] != 0 && each.alive()) holders.emplace_back(static_cast<int>(each.pid.load()), each.held[card]);
  }
  std::sort(holders.begin(), holders.end());
  return holders;
}

}  // namespace gpumem::simcuda
