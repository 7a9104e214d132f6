#include "library_policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "segment_sizes.hpp"
#include "text.hpp"

namespace gpumem {
namespace {

constexpr unsigned most_classes = 16;
constexpr std::size_t most_policies = 256;

gpumem_policy_view to_c(const pool_view& view) noexcept {
  return {.total_bytes = view.total_bytes,
          .free_at_start_bytes = view.free_at_start_bytes,
          .limit_bytes = view.limit_bytes,
          .reserved_bytes = view.reserved_bytes,
          .live_bytes = view.live_bytes,
          .peak_live_bytes = view.peak_live_bytes,
          .granularity_bytes = view.granularity_bytes};
}

class library_policy final : public policy {
 public:
  library_policy(const gpumem_policy_functions& table, void* self) noexcept : table_{table}, self_{self} {}
  library_policy& operator=(library_policy&&) = delete;
  ~library_policy() override { table_.close(self_); }

  segment_request first(const pool_view& view) override {
    if (table_.first == nullptr) return {};
    const gpumem_policy_view seen = to_c(view);
    const gpumem_policy_segment answer = table_.first(self_, &seen);
    const std::uint64_t bytes = std::min(whole_granules(view, answer.bytes), allowed_bytes(view));
    return {.bytes = bytes, .least_bytes = std::min(answer.least_bytes, bytes)};
  }

  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    const gpumem_policy_view seen = to_c(view);
    const gpumem_policy_segment answer = table_.grow(self_, &seen, need_bytes);
    segment_request request = request_within_limit(view, answer.bytes, need_bytes);
    request.least_bytes = std::clamp(answer.least_bytes, request.least_bytes, request.bytes);
    return request;
  }

  void grew(const pool_view& after, std::uint64_t bytes) override {
    if (table_.grew == nullptr) return;
    const gpumem_policy_view seen = to_c(after);
    table_.grew(self_, &seen, bytes);
  }

  std::uint64_t smaller(std::uint64_t refused_bytes, std::uint64_t least_bytes) override {
    if (table_.smaller == nullptr) return policy::smaller(refused_bytes, least_bytes);
    const std::uint64_t next = table_.smaller(self_, refused_bytes, least_bytes);
    if (next == 0 || next >= refused_bytes || refused_bytes <= least_bytes) return 0;
    return std::max(next, least_bytes);
  }

  [[nodiscard]] bool gives_back(give_back why, const pool_view& view) const override {
    if (table_.gives_back == nullptr) return policy::gives_back(why, view);
    const gpumem_policy_view seen = to_c(view);
    return table_.gives_back(self_, &seen, why == give_back::pressure ? 1 : 0) != 0;
  }

  [[nodiscard]] unsigned segment_class(std::uint64_t bytes) const override {
    if (table_.segment_class == nullptr) return 0;
    const unsigned answer = table_.segment_class(self_, bytes);
    return answer < segment_classes() ? answer : 0;
  }
  [[nodiscard]] unsigned segment_classes() const override {
    return table_.segment_class == nullptr ? 1 : std::max(1U, table_.segment_classes);
  }

 private:
  const gpumem_policy_functions& table_;
  void* self_;
};

/// Formats the parameters as users write them: `name=value` or a word each, separated by `,`.
std::string text_of(const policy_parameters& parameters) {
  std::string text;
  for (const auto& [name, value] : parameters) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ",", name, value.empty() ? "" : "=", value);
  }
  return text;
}

/// Carries the library's reason for a refusal into the message of `make_policy`.
std::unique_ptr<policy> open_policy(const gpumem_policy_functions& table, const policy_setup& setup) {
  const gpumem_policy_device device{.total_bytes = setup.total_bytes,
                                    .free_at_start_bytes = setup.free_at_start_bytes,
                                    .granularity_bytes = setup.granularity_bytes,
                                    .compute_major = setup.compute_major};
  std::array<char, 256> why{};
  void* const self = table.open(&device, text_of(setup.parameters).c_str(), why.data(), why.size());
  if (self == nullptr) {
    why.back() = '\0';
    throw std::runtime_error{why.front() == '\0' ? "its library refused and gave no reason"
                                                 : printable(why.data(), 256)};
  }
  return std::make_unique<library_policy>(table, self);
}

status bad_library(std::string why) { return {errc::bad_setting, std::move(why)}; }

}  // namespace

result<std::vector<registered_policy>> policies_of_table(const gpumem_policy_library* table) {
  if (table == nullptr) return bad_library("gpumem_policies returned null; expected a table");
  if (table->version != GPUMEM_POLICY_LIBRARY_VERSION) {
    return bad_library(fmt::format("it is of version {}; expected {}", table->version, GPUMEM_POLICY_LIBRARY_VERSION));
  }
  if (table->function_bytes != sizeof(gpumem_policy_functions)) {
    return bad_library(fmt::format("a policy's table has {} bytes; expected {}", table->function_bytes,
                                   sizeof(gpumem_policy_functions)));
  }
  if (table->count == 0 || table->count > most_policies || table->policies == nullptr) {
    return bad_library(fmt::format("it has {} policies{}; expected 1 to {}", table->count,
                                   table->policies == nullptr ? " and no table of them" : "", most_policies));
  }
  std::vector<registered_policy> rows;
  for (std::size_t i = 0; i < table->count; ++i) {
    const gpumem_policy_functions& each = table->policies[i];
    if (each.name == nullptr) return bad_library(fmt::format("policy {} has no name; expected one", i));
    const char* const missing = each.open == nullptr    ? "open"
                                : each.close == nullptr ? "close"
                                : each.grow == nullptr  ? "grow"
                                                        : nullptr;
    if (missing != nullptr) {
      return bad_library(
          fmt::format("policy '{}' has a null `{}`; expected a function", printable(each.name), missing));
    }
    if (each.segment_classes > most_classes) {
      return bad_library(fmt::format("policy '{}' has {} segment classes; expected at most {}", printable(each.name),
                                     each.segment_classes, most_classes));
    }
    rows.push_back({{.name = each.name,
                     .summary = each.summary == nullptr ? "" : printable(each.summary, 200),
                     .own_parameters = true},
                    [&each](const policy_setup& setup) { return open_policy(each, setup); }});
  }
  return rows;
}

}  // namespace gpumem
