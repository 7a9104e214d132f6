/// Reads files of processes in /proc: names, parents, statistics.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace gpumem {

/// The file of the running program; empty if it is unknown.
std::filesystem::path own_program();

/// The command's name (15 bytes at most), printable; empty if there is no such process.
std::string command_of(unsigned process);

/// The fields of `stat` in a process's folder (/proc/PID) from the third, the state, on; none if the process has ended.
std::vector<std::string> stat_fields(const std::string& folder);

/// The number behind the word `key` in a file of words, as /proc/meminfo; 0 if there is none.
std::uint64_t number_after(const std::string& path, std::string_view key);

/// The parent's pid; 0 if there is none or it is unknown.
pid_t parent_of(const std::string& folder);

}  // namespace gpumem
