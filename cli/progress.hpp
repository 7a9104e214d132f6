// Shows a progress line with the time limit on a terminal; prints nothing into a pipe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace gpumem::cli {

class progress {
 public:
  /// Draws `task: 3 s of at most 50 s` on stderr, from the first second until destruction.
  progress(std::string task, double longest_s);
  ~progress();
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;

 private:
  void draw();

  std::string task_;
  double longest_s_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool finished_ = false;
  bool drawn_ = false;
  std::thread thread_;
};

}  // namespace gpumem::cli
