// Lets other processes query a process's figures, at no cost between queries.
//
// One thread listens on a socket in the user's shared folder (served-PID.sock). It sleeps until a client connects,
// answers with a text, and hangs up. The client sends its request and shuts down its side. A request is empty (for
// figures), `trim`, or `dump WHAT` with the descriptor of a file to write. Only the folder's user can connect. A
// process that finds the socket of a dead process removes it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shared_folder.hpp"

namespace gpumem {

class status_socket {
 public:
  /// Writes a dump to the client's file. The message of a failure names a remedy.
  using dump_function = std::function<status(std::string_view contents, int descriptor)>;

  /// The socket's thread calls `figures`, one call at a time, and on request `trim`, which gives idle memory back, and
  /// `dump`. The last two may be null.
  static result<std::unique_ptr<status_socket>> open(const std::string& folder, std::function<std::string()> figures,
                                                     std::function<void()> trim = nullptr,
                                                     dump_function dump = nullptr);
  status_socket(std::string path, owned_fd listening, std::function<std::string()> figures, std::function<void()> trim,
                dump_function dump);
  ~status_socket();
  status_socket& operator=(status_socket&&) = delete;
  /// Removes the socket from the folder before the process ends.
  void leave() noexcept;

 private:
  void serve() noexcept;
  [[nodiscard]] std::string answer(int asker);

  std::string path_;
  owned_fd listening_;
  std::function<std::string()> figures_;
  std::function<void()> trim_;
  dump_function dump_;
  int process_;
  std::thread thread_;
};

struct served_process {
  int pid = 0;
  std::string answer;  ///< empty if it did not answer in time: stopped, or inside an allocation
};

/// Asks the process to return its idle memory, and waits until it has; false if it does not answer.
bool ask_to_trim(const std::string& folder, int pid, std::chrono::milliseconds longest);

/// Answer of a process that has written a dump.
inline constexpr std::string_view dump_written = "written";

/// Asks the process to write a dump to a regular file, and waits until it has. Returns its answer: `dump_written` or an
/// error, or an empty text if it does not answer in time. Returns nullopt if no process listens for this PID.
std::optional<std::string> ask_to_dump(const std::string& folder, int pid, std::string_view contents, int descriptor,
                                       std::chrono::milliseconds longest);

/// Asks every process that listens in the folder, by pid.
std::vector<served_process> ask_served(const std::string& folder, std::chrono::milliseconds each);

}  // namespace gpumem
