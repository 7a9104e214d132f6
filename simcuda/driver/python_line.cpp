#include "python_line.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <sstream>
#include <string_view>

namespace gpumem::simcuda {
namespace {

std::atomic<int> with_signal = 0;
std::atomic<int> into_file = -1;

/// Returns the stack in faulthandler's format; empty if the signal is blocked, or the thread has no Python.
std::string stack_here() {
  const int file = into_file;
  struct sigaction current_action {};
  const bool handled = with_signal != 0 && ::sigaction(with_signal, nullptr, &current_action) == 0 &&
                       ((current_action.sa_flags & SA_SIGINFO) != 0 || current_action.sa_handler != SIG_DFL);
  if (!handled || ::ftruncate(file, 0) != 0 || ::lseek(file, 0, SEEK_SET) != 0) return {};
  ::raise(with_signal);
  std::string text(64 * 1024, '\0');
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

/// Parses `  File "train.py", line 12 in step`; empty if the line has another form.
std::string place_in(std::string_view line) {
  constexpr std::string_view begin = "  File \"";
  constexpr std::string_view middle = "\", line ";
  const auto end_of_name = line.rfind(middle);
  if (!line.starts_with(begin) || end_of_name == std::string_view::npos) return {};
  return std::string{line.substr(begin.size(), end_of_name - begin.size())} + ":" +
         std::string{line.substr(end_of_name + middle.size())};
}

bool installed(std::string_view place) {
  return place.find("/site-packages/") != std::string_view::npos ||
         place.find("/lib/python3") != std::string_view::npos ||
         place.find("/dist-packages/") != std::string_view::npos;
}

}  // namespace

void watch_python(int signal, int file) {
  into_file = file;
  with_signal = signal;
}

std::string python_line() {
  std::istringstream lines{stack_here()};
  std::string first;
  for (std::string line; std::getline(lines, line);) {
    std::string place = place_in(line);
    if (place.empty()) continue;
    if (!installed(place)) return place;
    if (first.empty()) first = std::move(place);
  }
  return first;
}

}  // namespace gpumem::simcuda
