#include "top_screen.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "dump.hpp"
#include "gpumem/settings.hpp"
#include "served_figures.hpp"

#ifdef GPUMEM_CURSES
#include <ncurses.h>
#include <term.h>
#undef lines  // macros of term.h
#undef columns
#endif

namespace gpumem::cli {

#ifdef GPUMEM_CURSES
namespace {

using clock = std::chrono::steady_clock;

/// Restores the terminal in its destructor.
class curses {
 public:
  curses() {
    screen_ = ::newterm(nullptr, stdout, stdin);
    if (screen_ == nullptr) return;
    ::cbreak();
    ::noecho();
    ::keypad(stdscr, TRUE);
    ::curs_set(0);
    if (::has_colors() == TRUE) {
      ::start_color();
      ::use_default_colors();
      ::init_pair(1, COLOR_GREEN, -1);
      ::init_pair(2, COLOR_YELLOW, -1);
      ::init_pair(3, COLOR_RED, -1);
    }
  }
  ~curses() {
    if (screen_ == nullptr) return;
    ::endwin();
    ::delscreen(screen_);
  }
  curses& operator=(curses&&) = delete;
  [[nodiscard]] bool open() const { return screen_ != nullptr; }

 private:
  SCREEN* screen_ = nullptr;
};

attr_t attributes(style appearance) {
  switch (appearance) {
    case style::heading:
      return A_BOLD;
    case style::low:
      return COLOR_PAIR(1);
    case style::middle:
      return COLOR_PAIR(2);
    case style::high:
      return COLOR_PAIR(3) | A_BOLD;
    case style::faint:
      return A_DIM;
    case style::selected:
      return A_REVERSE;
    case style::plain:
      break;
  }
  return A_NORMAL;
}

void draw(const std::vector<screen_line>& lines) {
  ::erase();
  for (int y = 0; y < std::min(LINES, static_cast<int>(lines.size())); ++y) {
    ::move(y, 0);
    for (const span_of_text& part : lines[static_cast<std::size_t>(y)]) {
      ::attrset(static_cast<int>(attributes(part.appearance)));
      ::addnstr(part.text.c_str(), static_cast<int>(part.text.size()));
    }
  }
  ::attrset(A_NORMAL);
  ::refresh();
}

std::uint64_t reserved_by(const look& shown, int pid) {
  std::uint64_t bytes = 0;
  for (const nlohmann::json& p : shown.served) {
    if (p["pid"] != pid) continue;
    for (const nlohmann::json& d : p["devices"]) bytes += d["reserved_bytes"].get<std::uint64_t>();
  }
  return bytes;
}

void trim_selected(look& shown, view_state& state, const std::function<look()>& look_now) {
  const std::vector<process_row> rows = process_rows(shown, state);
  if (state.selected >= rows.size() || !rows[state.selected].served) {
    state.message = "only a process that gpumem serves can be trimmed";
    return;
  }
  const int pid = rows[state.selected].pid;
  const std::uint64_t before = reserved_by(shown, pid);
  if (!trim_served(pid)) {
    state.message = fmt::format("process {} does not answer", pid);
    return;
  }
  shown = look_now();
  const std::uint64_t after = reserved_by(shown, pid);
  state.message = fmt::format("process {} gave {} back and holds {}", pid,
                              format_bytes(before - std::min(before, after)), format_bytes(after));
}

void dump_selected(const look& shown, view_state& state) {
  const std::vector<process_row> rows = process_rows(shown, state);
  if (state.selected >= rows.size() || !rows[state.selected].served) {
    state.message = "only a process that gpumem serves can be dumped";
    return;
  }
  dump_options options;
  options.pid = static_cast<unsigned>(rows[state.selected].pid);
  const result<std::string> written = write_dump_of_process(options);
  state.message = written ? fmt::format("the latest events of process {} are in {}", options.pid, *written)
                          : written.why().message();
}

}  // namespace

namespace {
/// The value of tigetstr for a name that is no string capability.
const char* const absent_capability = reinterpret_cast<const char*>(-1);
}  // namespace

bool screen_is_possible() {
  if (::isatty(STDOUT_FILENO) == 0 || ::isatty(STDIN_FILENO) == 0) return false;
  int error = 0;
  if (::setupterm(nullptr, STDOUT_FILENO, &error) != OK) return false;  // terminfo has no entry for TERM
  const char* const move = ::tigetstr("cup");
  const bool can_move = move != nullptr && move != absent_capability;
  ::del_curterm(::cur_term);
  return can_move;
}

int run_screen(const std::function<look()>& look_now, double interval_s) {
  const curses terminal;
  if (!terminal.open()) return 1;
  const std::chrono::duration<double> interval{interval_s};
  view_state state;
  for (;;) {
    look shown = look_now();
    const clock::time_point until = clock::now() + std::chrono::duration_cast<clock::duration>(interval);
    for (;;) {
      draw(top_lines(shown, state, static_cast<std::size_t>(std::max(1, COLS))));
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now());
      if (left.count() <= 0) break;
      ::timeout(static_cast<int>(left.count()));
      const int key = ::getch();
      if (key == ERR) break;
      const std::size_t rows = process_rows(shown, state).size();
      const key_action action = press(state, key, rows, {KEY_UP, KEY_DOWN, KEY_BACKSPACE});
      if (action == key_action::quit) return 0;
      if (action == key_action::trim) trim_selected(shown, state, look_now);
      if (action == key_action::dump) dump_selected(shown, state);
    }
  }
}

#else

bool screen_is_possible() { return false; }
int run_screen(const std::function<look()>& /*look_now*/, double /*interval_s*/) { return 1; }

#endif

}  // namespace gpumem::cli
