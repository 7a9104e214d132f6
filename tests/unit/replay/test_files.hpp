/// Files for a test: a temporary folder, plain and gzip content, small traces from short texts.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "gpumem/status.hpp"
#include "trace.hpp"

namespace gpumem::bench {

inline constexpr std::string_view csv_header = "Thread,Time,Action,Pointer,Size,Stream\n";

/// A trace file's content: the header and `rows`.
inline std::string csv(std::string_view rows) { return std::string{csv_header}.append(rows); }

inline std::string gzipped(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  std::string in{text};
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class test_folder {
 public:
  test_folder() {
    static int made = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("gpumem_bench_test_" + std::to_string(::getpid()) + "_" + std::to_string(++made));
    std::filesystem::create_directories(path_);
  }
  ~test_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  test_folder(const test_folder&) = delete;
  test_folder& operator=(const test_folder&) = delete;

  [[nodiscard]] std::string path(std::string_view name) const { return (path_ / name).string(); }
  [[nodiscard]] std::string path() const { return path_.string(); }
  std::string write(std::string_view name, std::string_view content) const {
    std::ofstream out{path(name), std::ios::binary};
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

inline std::string content_of(const std::string& path) {
  std::ifstream in{path, std::ios::binary};
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

/// Loads rows without the header; fails the test if they are no trace.
inline trace trace_of(std::string_view rows) {
  const test_folder folder;
  auto loaded = load_trace(folder.write("t.csv", csv(rows)));
  EXPECT_TRUE(loaded.ok()) << loaded.why().message();
  return *std::move(loaded);
}

}  // namespace gpumem::bench
