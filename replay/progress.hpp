/// Progress on stderr, in a line that is drawn again. Silent if stderr is no terminal. The destructors clear the line.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace gpumem::bench {

/// A bar of counted steps. Any thread.
class progress {
 public:
  progress(std::size_t steps, bool quiet);
  ~progress();
  progress& operator=(progress&&) = delete;

  /// Counts one step and shows its name.
  void step(std::string_view name);

 private:
  std::mutex mutex_;
  const std::size_t steps_;
  const bool shown_;
  std::size_t done_ = 0;
};

/// The time that a task has taken, of its time limit: `planning run.csv: 3 s of at most 50 s`, from the first second
/// until destruction.
class timed_progress {
 public:
  timed_progress(std::string task, double longest_s);
  ~timed_progress();
  timed_progress& operator=(timed_progress&&) = delete;

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

}  // namespace gpumem::bench
