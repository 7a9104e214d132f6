/// The figures of one trace under one row of `gpumem_bench compare`, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "measure.hpp"
#include "trace.hpp"

namespace gpumem::bench {

inline compare_figures figures_of(const trace& t, const std::string& row_text, const replay_setup& with = {}) {
  const result<policy_row> row = parse_policy_row(row_text, settings{}, "");
  EXPECT_TRUE(row.ok()) << row.why().message();
  result<compare_figures> figures = measure_checked(t, *row, with);
  EXPECT_TRUE(figures.ok()) << figures.why().message();
  return figures ? *std::move(figures) : compare_figures{};
}

}  // namespace gpumem::bench
