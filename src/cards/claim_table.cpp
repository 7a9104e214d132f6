// Locks: every change holds flock on the folder; the owner of row i holds a lock on byte 1 + i of its file for its
// life.
//
// Reads and writes files by system calls and never maps them: reading a mapping of a truncated file kills the process.
#include "claim_table.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <thread>

#include "assign_or_return.hpp"
#include "shared_folder.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t claims_magic = 0x31534d49414c4347;  // "GCLAIMS1"
constexpr std::uint32_t no_place = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t most_rows = 511;
constexpr std::size_t most_files = 1024;
constexpr mode_t mode_of_common_folder = 01777;
constexpr mode_t mode_bits = 07777;
constexpr std::string_view file_prefix = "claims-";

enum class row_kind : std::uint32_t { none, given, waiting };

struct stored_row {
  std::array<char, 64> uuid;  // ends with a 0
  std::uint64_t bytes;
  std::uint64_t since_ns;
  std::uint64_t seen_ns;
  std::uint64_t pid_space;
  std::int32_t pid;
  std::int32_t keeper;
  std::uint32_t place;
  row_kind kind;
  std::array<std::uint64_t, 2> unused;
};
static_assert(sizeof(stored_row) == 128);

struct stored_file {
  std::uint64_t magic;
  std::uint64_t size;
  std::array<std::uint64_t, 14> unused;
  std::array<stored_row, most_rows> rows;
};
constexpr std::size_t claims_file_bytes = sizeof(stored_file);
static_assert(claims_file_bytes == 65536);

constexpr long row_lock(std::size_t row) noexcept { return 1 + static_cast<long>(row); }
constexpr off_t offset_of(std::size_t row, std::size_t field = 0) noexcept {
  return static_cast<off_t>(offsetof(stored_file, rows) + row * sizeof(stored_row) + field);
}

status refused(std::string_view path, std::string_view why, std::string_view expected) {
  return {errc::bad_setting, fmt::format("{}: {}; expected {}", path, why, expected)};
}

/// Reads a row that its owner has locked; empty if it is damaged.
std::optional<card_claim> claim_of(const stored_row& row) {
  const auto end = std::find(row.uuid.begin(), row.uuid.end(), '\0');
  const bool printable = std::all_of(row.uuid.begin(), end, [](char each) { return each > ' ' && each < 0x7f; });
  const bool known_kind = row.kind == row_kind::given || row.kind == row_kind::waiting;
  if (!known_kind || end == row.uuid.begin() || end == row.uuid.end() || !printable || row.pid <= 0 || row.keeper < 0) {
    return std::nullopt;
  }
  return card_claim{.uuid = {row.uuid.begin(), end},
                    .bytes = row.bytes,
                    .place = row.place == no_place ? std::nullopt : std::optional<unsigned>{row.place},
                    .waiting = row.kind == row_kind::waiting,
                    .since_ns = row.since_ns,
                    .seen_ns = row.seen_ns,
                    .pid = row.pid,
                    .keeper = row.keeper,
                    .pid_space = row.pid_space};
}

std::uint64_t inode_of(const char* path) noexcept {
  struct stat s {};
  return ::stat(path, &s) == 0 ? s.st_ino : 0;
}

template <typename Value>
bool write_at(int fd, const Value& value, off_t offset) noexcept {
  return ::pwrite(fd, &value, sizeof value, offset) == static_cast<ssize_t>(sizeof value);
}

constexpr int most_waits = 2000;
constexpr std::chrono::milliseconds wait_between{5};

}  // namespace

status held_claims::keep_across_exec() {
  const int flags = empty() ? 0 : ::fcntl(file_.get(), F_GETFD);
  if (!empty() && (flags < 0 || ::fcntl(file_.get(), F_SETFD, flags & ~FD_CLOEXEC) != 0)) {
    return {errc::unsupported, fmt::format("a lease cannot be kept: {}", std::strerror(errno))};
  }
  return {};
}

void held_claims::set_keeper(int keeper, int pid) noexcept {
  const auto pid_word = static_cast<std::int32_t>(pid);
  const auto keeper_word = static_cast<std::int32_t>(keeper);
  for (const std::size_t row : rows_) {
    static_cast<void>(write_at(file_.get(), keeper_word, offset_of(row, offsetof(stored_row, keeper))));
    static_cast<void>(write_at(file_.get(), pid_word, offset_of(row, offsetof(stored_row, pid))));
  }
}

claim_table::~claim_table() {
  // A process forked in the meantime has the descriptor too, so closing it would not unlock the folder.
  if (is_locked_ && folder_fd_.get() >= 0) ::flock(folder_fd_.get(), LOCK_UN);
}

status claim_table::open_folder() {
  struct stat s {};
  if (!is_common()) {
    ASSIGN_OR_RETURN(folder_, shared_folder(named_));
  } else {
    const bool has_shm = ::stat("/dev/shm", &s) == 0 && S_ISDIR(s.st_mode);
    folder_ = has_shm ? "/dev/shm/gpumem-claims" : "/tmp/gpumem-claims";
    if (::mkdir(folder_.c_str(), mode_of_common_folder) == 0) ::chmod(folder_.c_str(), mode_of_common_folder);
  }
  folder_fd_ = owned_fd{::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  if (folder_fd_.get() < 0) {
    const int error = errno;
    if (error == ENOTDIR || error == ELOOP) return refused(folder_, "is no folder", "a folder that all users may open");
    if (is_common() && error == EACCES)
      return refused(folder_, std::strerror(error), "a folder that all users may open");
    return {errc::unsupported,
            fmt::format("{}: {}: claims and leases of other programs are not known", folder_, std::strerror(error))};
  }
  if (!is_common()) return {};
  for (int i = 0; i < most_waits / 10; ++i) {  // the folder's creator may be about to set the mode
    if (::fstat(folder_fd_.get(), &s) != 0) return refused(folder_, std::strerror(errno), "a folder");
    if ((s.st_mode & mode_bits) == mode_of_common_folder) return {};
    if (s.st_uid == ::geteuid()) ::fchmod(folder_fd_.get(), mode_of_common_folder);
    std::this_thread::sleep_for(wait_between);
  }
  return refused(folder_, fmt::format("has mode {:04o} and belongs to user {}", s.st_mode & mode_bits, s.st_uid),
                 "mode 1777, for all users");
}

status claim_table::lock_folder() {
  for (int i = 0; i < most_waits; ++i) {
    if (::flock(folder_fd_.get(), LOCK_EX | LOCK_NB) == 0) {
      is_locked_ = true;
      return {};
    }
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return {errc::unsupported, fmt::format("{}: cannot be locked: {}", folder_, std::strerror(errno))};
    }
    std::this_thread::sleep_for(wait_between);
  }
  return {errc::out_of_memory,
          fmt::format("{}: another program has kept it locked for 10 s; expected milliseconds", folder_)};
}

// The name includes the user namespace, because namespaces number users independently: a process may not be able to
// write the file of a user with the same number in another namespace.
std::string claim_table::own_name() const {
  return fmt::format("{}{}-{}", file_prefix, ::geteuid(), inode_of("/proc/self/ns/user"));
}

status claim_table::read_file(const std::string& name) {
  const std::string path = fmt::format("{}/{}", folder_, name);
  const std::string_view expected = "a file of claims: remove it when no program of its user runs";
  const owned_fd file{
      ::openat(folder_fd_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)};
  if (file.get() < 0) {
    if (errno == ENOENT) return {};
    return refused(path, errno == ELOOP ? "is a symlink" : std::strerror(errno), expected);
  }
  struct stat s {};
  if (::fstat(file.get(), &s) != 0) return refused(path, std::strerror(errno), expected);
  if (!S_ISREG(s.st_mode)) return refused(path, "is no regular file", expected);
  if (!is_common() && s.st_uid != ::geteuid()) {
    return refused(path, fmt::format("belongs to user {}", s.st_uid), expected);
  }
  const bool own = name == own_name();
  if (!any_byte_locked(file.get())) {                                        // no row has an owner
    const bool left_behind = is_locked_ && !own && s.st_uid == ::geteuid();  // by a user namespace that has ended
    if (left_behind) ::unlinkat(folder_fd_.get(), name.c_str(), 0);
    return {};
  }
  stored_file all;
  const ssize_t got = ::pread(file.get(), &all, claims_file_bytes, 0);
  if (static_cast<std::size_t>(s.st_size) != claims_file_bytes || got != static_cast<ssize_t>(claims_file_bytes)) {
    return refused(path, fmt::format("has {} bytes and belongs to user {}", s.st_size, s.st_uid), expected);
  }
  if (all.magic != claims_magic || all.size != claims_file_bytes) {
    return refused(path, fmt::format("has another header and belongs to user {}", s.st_uid), expected);
  }
  for (std::size_t i = 0; i < most_rows; ++i) {
    if (!byte_locked(file.get(), row_lock(i))) continue;
    std::optional<card_claim> claim = claim_of(all.rows[i]);
    if (!claim && !is_locked_) continue;  // the owner may be about to write the row
    if (!claim) return refused(path, fmt::format("row {} is damaged; user {} holds it", i, s.st_uid), expected);
    rows_.push_back({*std::move(claim), own, i});
  }
  return {};
}

status claim_table::read_all() {
  std::error_code error;
  std::size_t files = 0;
  for (std::filesystem::directory_iterator entry{folder_, error}, end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(file_prefix)) continue;
    if (++files > most_files) {
      return refused(folder_, fmt::format("has more than {} files of claims", most_files), "one for each user");
    }
    if (status read = read_file(name); !read) return read;
  }
  if (error) return refused(folder_, error.message(), "a folder that can be listed");
  return {};
}

result<claim_table> claim_table::open(const std::string& named) {
  claim_table table{named};
  if (status opened = table.open_folder(); !opened) return opened;
  if (status locked = table.lock_folder(); !locked) return locked;
  if (status read = table.read_all(); !read) return read;
  return table;
}

result<std::vector<card_claim>> claim_table::look(const std::string& named) {
  claim_table table{named};
  if (status opened = table.open_folder(); !opened) return opened;
  if (status read = table.read_all(); !read) return read;
  return table.others({});
}

std::vector<card_claim> claim_table::others(const held_claims& own) const {
  std::vector<card_claim> claims;
  for (const found_row& row : rows_) {
    const bool is_own = row.in_own_file && std::find(own.rows_.begin(), own.rows_.end(), row.index) != own.rows_.end();
    if (!is_own) claims.push_back(row.claim);
  }
  return claims;
}

result<owned_fd> claim_table::open_own_file() const {
  const std::string name = own_name();
  const std::string path = fmt::format("{}/{}", folder_, name);
  const mode_t mode = is_common() ? 0644 : 0600;
  const auto unusable = [&](std::string_view why) {
    return status{errc::bad_setting,
                  fmt::format("{}: {}; expected a regular file of user {} with one name", path, why, ::geteuid())};
  };
  constexpr int how = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  owned_fd file{::openat(folder_fd_.get(), name.c_str(), how)};
  if (file.get() < 0 && errno == ENOENT) {
    file = owned_fd{::openat(folder_fd_.get(), name.c_str(), how | O_CREAT | O_EXCL, mode)};
  }
  if (file.get() < 0) return unusable(std::strerror(errno));
  struct stat s {};
  if (::fstat(file.get(), &s) != 0) return unusable(std::strerror(errno));
  if (!S_ISREG(s.st_mode) || s.st_uid != ::geteuid() || s.st_nlink != 1) {
    return unusable(fmt::format("belongs to user {} and has {} names", s.st_uid, s.st_nlink));
  }
  if ((s.st_mode & mode_bits) != mode && ::fchmod(file.get(), mode) != 0) return unusable(std::strerror(errno));
  if (any_byte_locked(file.get())) return file;  // read_file has checked it
  // No row has an owner, so the file is new or may be initialised again.
  const bool made = ::ftruncate(file.get(), 0) == 0 &&
                    ::ftruncate(file.get(), static_cast<off_t>(claims_file_bytes)) == 0 &&
                    write_at(file.get(), std::array{claims_magic, std::uint64_t{claims_file_bytes}}, 0);
  if (!made) return unusable(std::strerror(errno));
  return file;
}

status claim_table::replace(held_claims& own, std::span<const card_claim> rows) const {
  struct stat s {};
  if (own.file_.get() < 0 || ::fstat(own.file_.get(), &s) != 0 || s.st_nlink == 0) {
    ASSIGN_OR_RETURN(own.file_, open_own_file());
    own.rows_.clear();
  }
  const int file = own.file_.get();
  for (const std::size_t row : own.rows_) {
    write_at(file, stored_row{}, offset_of(row));
    unlock_byte(file, row_lock(row));
  }
  own.rows_.clear();
  std::size_t next = 0;
  for (const card_claim& claim : rows) {
    while (next < most_rows && !lock_byte(file, row_lock(next))) ++next;
    if (next == most_rows) {
      return {errc::unsupported, fmt::format("{}/{}: has {} rows already", folder_, own_name(), most_rows)};
    }
    stored_row row{.uuid = {},
                   .bytes = claim.bytes,
                   .since_ns = claim.since_ns,
                   .seen_ns = claim.seen_ns,
                   .pid_space = claim.pid_space,
                   .pid = static_cast<std::int32_t>(claim.pid),
                   .keeper = static_cast<std::int32_t>(claim.keeper),
                   .place = claim.place ? *claim.place : no_place,
                   .kind = claim.waiting ? row_kind::waiting : row_kind::given,
                   .unused = {}};
    if (claim.uuid.empty() || claim.uuid.size() >= row.uuid.size()) {
      unlock_byte(file, row_lock(next));
      return {errc::invalid_argument,
              fmt::format("no claim on '{}': expected a UUID of 1 to {} characters", claim.uuid, row.uuid.size() - 1)};
    }
    std::copy(claim.uuid.begin(), claim.uuid.end(), row.uuid.begin());
    if (!write_at(file, row, offset_of(next))) {
      const int error = errno;
      unlock_byte(file, row_lock(next));
      return {errc::unsupported, fmt::format("{}/{}: {}", folder_, own_name(), std::strerror(error))};
    }
    own.rows_.push_back(next++);
  }
  return {};
}

std::uint64_t boot_time_ns() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_BOOTTIME, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

std::uint64_t own_pid_space() noexcept { return inode_of("/proc/self/ns/pid"); }

std::string isolation_warning(const std::string& named, std::span<const card_claim> claims) {
  constexpr std::uint64_t first_pid_space = 0xEFFFFFFC;  // of the host, in every version of Linux
  constexpr std::uint64_t first_ipc_space = 0xEFFFFFFF;
  const std::uint64_t pid_space = own_pid_space();
  const std::uint64_t ipc_space = inode_of("/proc/self/ns/ipc");
  const bool contained = pid_space != 0 && pid_space != first_pid_space && ipc_space != first_ipc_space;
  const bool meets_others =
      std::any_of(claims.begin(), claims.end(), [&](const card_claim& each) { return each.pid_space != pid_space; });
  if (!named.empty() || !contained || meets_others) return "";
  return "this container has its own IPC namespace and no GPUMEM_SHARED_FOLDER: programs outside may choose the same "
         "card; share /dev/shm (--ipc=host), or a folder that GPUMEM_SHARED_FOLDER names";
}

}  // namespace gpumem
