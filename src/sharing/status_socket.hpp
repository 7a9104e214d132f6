// How a process that gpumem serves is asked what it holds, at no cost while nobody asks.
//
// It listens on a socket in the shared folder (served-PID.sock, in a folder that is the user's alone) with one thread
// that sleeps until somebody connects, answers with a text, and hangs up. Whoever connects says what it wants, nothing
// or `trim`, and ends its side; only the user whose folder it is can. What is left of a dead process is removed by
// whoever finds it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shared_folder.hpp"

namespace gpumem {

class status_socket {
 public:
  /// `figures` is called on the socket's thread, one call at a time.
  /// `trim`, which may be null, gives idle memory back; it is called there, too, when somebody asks for that.
  static result<std::unique_ptr<status_socket>> open(const std::string& folder, std::function<std::string()> figures,
                                                     std::function<void()> trim = nullptr);
  status_socket(std::string path, owned_fd listening, std::function<std::string()> figures, std::function<void()> trim);
  ~status_socket();
  status_socket(const status_socket&) = delete;
  status_socket& operator=(const status_socket&) = delete;
  /// Removes the socket from the folder, for a process that is about to end.
  void leave() noexcept;

 private:
  void serve() noexcept;

  std::string path_;
  owned_fd listening_;
  std::function<std::string()> figures_;
  std::function<void()> trim_;
  int process_;
  std::thread thread_;
};

struct served_process {
  int pid = 0;
  std::string answer;  ///< empty where it did not answer in time: stopped, or at work inside an allocation
};

/// Asks the process to give its idle memory back, and waits until it has; false where it does not answer.
bool ask_to_trim(const std::string& folder, int pid, std::chrono::milliseconds longest);

/// Everybody who listens in the folder, by pid.
std::vector<served_process> ask_served(const std::string& folder, std::chrono::milliseconds each);

}  // namespace gpumem
