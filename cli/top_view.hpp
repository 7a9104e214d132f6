// The view of `gpumem top` as lines of coloured text, made without a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "look.hpp"

namespace gpumem::cli {

enum class style : std::uint8_t { plain, heading, low, middle, high, faint, selected };
struct span_of_text {
  std::string text;
  style appearance = style::plain;
};
using screen_line = std::vector<span_of_text>;

enum class sort_order : std::uint8_t { gpu, memory, pid, user, command };

/// A process on a card: NVML's figures and, if gpumem serves it, its pool's.
struct process_row {
  std::string gpu;  ///< NVML's index; `-` if unknown
  int pid = 0;
  std::string user;
  std::string command;
  std::uint64_t memory_bytes = 0;
  bool served = false;
  std::string policy;
  std::uint64_t live_bytes = 0;
  std::uint64_t reserved_bytes = 0;
  double fragmentation = 0;
};

/// The state that keys change.
struct view_state {
  sort_order sort = sort_order::gpu;
  std::string filter;      ///< text searched in the command, the user and the pid
  bool filtering = false;  ///< the user is typing the filter
  std::size_t selected = 0;
  std::string message;  ///< result of the last key
};

enum class key_action : std::uint8_t { none, quit, trim, dump };

/// The processes that pass the filter, in the order of the view.
std::vector<process_row> process_rows(const look& shown, const view_state& state);

/// The screen's lines, each at most `columns` wide.
std::vector<screen_line> top_lines(const look& shown, const view_state& state, std::size_t columns);

/// The terminal's codes of the arrow keys.
struct key_names {
  int up;
  int down;
  int backspace;
};
/// Handles a key.
key_action press(view_state& state, int key, std::size_t rows, const key_names& names);

}  // namespace gpumem::cli
