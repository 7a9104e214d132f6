// Passes on the error of a step that may fail.
#pragma once

#include <utility>

/// Assigns a result's value to a new or an existing variable, or returns the result's status. Use it in a block with
/// braces, once a line: `ASSIGN_OR_RETURN(const auto row, parse_policy_row(text));`
#define ASSIGN_OR_RETURN(declaration, ...) GPUMEM_ASSIGN_AT(__LINE__, declaration, __VA_ARGS__)
#define GPUMEM_ASSIGN_AT(line, declaration, ...) GPUMEM_ASSIGN_AS(step_of_line_, line, declaration, __VA_ARGS__)
#define GPUMEM_ASSIGN_AS(prefix, line, declaration, ...) \
  auto prefix##line = __VA_ARGS__;                       \
  if (!prefix##line) return prefix##line.why();          \
  declaration = *std::move(prefix##line)
