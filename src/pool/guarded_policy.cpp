#include "guarded_policy.hpp"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <utility>

#include "text.hpp"
#include "without_exceptions.hpp"

namespace gpumem {
namespace {

constexpr unsigned most_classes = 256;  // a block's record stores the class in eight bits

}  // namespace

guarded_policy::guarded_policy(std::unique_ptr<policy> asked, std::string name)
    : asked_{std::move(asked)}, name_{std::move(name)}, classes_{ask("segment_classes", &policy::segment_classes)} {
  if (classes_ == 0 || classes_ > most_classes) {
    fail("segment_classes", fmt::format("answered {}; expected 1 to {}", classes_, most_classes));
  }
}

void guarded_policy::fail(const char* function, const std::string& message) const {
  throw thrown_status{{errc::policy_failed, fmt::format("policy {}: {} {}", name_, function, message)}};
}

void guarded_policy::fail_as_thrown(const char* function) const {  // called while the exception is handled
  try {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    fail(function, fmt::format("threw: {}", printable(e.what(), 256)));
  } catch (...) {
    fail(function, "threw what is no std::exception");
  }
}

page_rules guarded_policy::pages(const pool_view& view) const {
  const page_rules rules = ask("pages", &policy::pages, view);
  if (rules.streams_apart && classes_ != page_rules::classes_apart) {
    fail("pages", fmt::format("answered streams_apart with {} segment_classes; expected {}", classes_,
                              page_rules::classes_apart));
  }
  return rules;
}

unsigned guarded_policy::class_of_several(std::uint64_t bytes) const {
  const unsigned answer = ask("segment_class", &policy::segment_class, bytes);
  if (answer >= classes_) {
    fail("segment_class", fmt::format("answered {} for {} bytes; expected less than {}", answer, bytes, classes_));
  }
  return answer;
}

}  // namespace gpumem
