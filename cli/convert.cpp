#include "convert.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "binary_trace.hpp"
#include "job_rank.hpp"
#include "print_error.hpp"
#include "text.hpp"
#include "trace.hpp"

namespace gpumem::cli {
namespace {

int fail(int code, const std::string& why) {
  print_error("gpumem: {}{}\n", rank_prefix(), printable(why, 8192));
  return code;
}

struct timed_read {
  result<bench::trace> what{status{errc::invalid_argument, "not read"}};
  double seconds = 0;  ///< processor time, the least of several readings
};

timed_read read_timed(const std::string& path, int times) {
  timed_read out;
  for (int k = 0; k < times; ++k) {
    const std::clock_t began = std::clock();
    out.what = bench::load_trace(path);
    const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
    out.seconds = k == 0 ? seconds : std::min(out.seconds, seconds);
  }
  return out;
}

bool same(const bench::trace& a, const bench::trace& b) {
  const auto same_op = [](const bench::trace_op& x, const bench::trace_op& y) {
    // CSV has microseconds.
    return x.time_ns / 1000 == y.time_ns / 1000 && x.bytes == y.bytes && x.slot == y.slot && x.stream == y.stream &&
           x.kind == y.kind;
  };
  return std::equal(a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(), same_op);
}

}  // namespace

CLI::App* add_convert_command(CLI::App& to, convert_options& into) {
  CLI::App* const convert = to.add_subcommand("convert", "converts a recording: .csv, .csv.gz or .gmtrace");
  convert->footer("Example: gpumem convert run.csv.gz -o run.gmtrace");
  convert->add_option("in", into.input, "a recording: RMM CSV, plain or gzip, or a compact trace")->type_name("IN");
  convert->add_option("-o,--output", into.output, "ends in .gmtrace (compact), .csv or .csv.gz")->type_name("OUT");
  convert->add_flag("--json", into.json, "print sizes and reading times of both files");
  return convert;
}

int convert(const convert_options& with) {
  if (with.input.empty() || with.output.empty()) return fail(2, "convert: expected gpumem convert IN -o OUT");
  const timed_read in = read_timed(with.input, with.json ? 3 : 1);
  if (!in.what) return fail(1, in.what.why().message());
  const status written = bench::write_trace(with.output, *in.what);
  if (!written.ok()) return fail(1, written.message());
  const timed_read out = read_timed(with.output, with.json ? 3 : 1);
  if (!out.what) return fail(1, out.what.why().message());
  if (!same(*in.what, *out.what))
    return fail(1, with.output + ": read back, it differs from what was written; expected a working disk");
  if (with.json) {
    const auto figures = [](const std::string& path, const timed_read& of) {
      return nlohmann::ordered_json{{"bytes", std::filesystem::file_size(path)}, {"read_s", of.seconds}};
    };
    const nlohmann::ordered_json all{{"schema", 1},
                                     {"ops", in.what->ops.size()},
                                     {"input", figures(with.input, in)},
                                     {"output", figures(with.output, out)}};
    fmt::print("{}\n", all.dump());
  }
  return 0;
}

}  // namespace gpumem::cli
