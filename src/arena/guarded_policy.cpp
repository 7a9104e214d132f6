#include "guarded_policy.hpp"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <utility>

#include "without_exceptions.hpp"

namespace gpumem {
namespace {

constexpr unsigned most_classes = 256;  // a block's record has eight bits for it

}  // namespace

guarded_policy::guarded_policy(std::unique_ptr<policy> asked, std::string name)
    : asked_{std::move(asked)}, name_{std::move(name)}, classes_{ask("segment_classes", [this] {
        return asked_->segment_classes();
      })} {
  if (classes_ == 0 || classes_ > most_classes) {
    fail("segment_classes", fmt::format("answered {}; expected 1 to {}", classes_, most_classes).c_str());
  }
}

void guarded_policy::fail(const char* function, const char* what) const {
  throw thrown_status{{errc::policy_failed, fmt::format("policy {}: {} {}", name_, function, what)}};
}

template <typename Call>
auto guarded_policy::ask(const char* function, const Call& call) const -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    fail(function, fmt::format("threw: {}", e.what()).c_str());
  } catch (...) {
    fail(function, "threw what is no std::exception");
  }
}

segment_request guarded_policy::first(const pool_view& view) {
  return ask("first", [&] { return asked_->first(view); });
}

segment_request guarded_policy::grow(const pool_view& view, std::uint64_t need_bytes) {
  return ask("grow", [&] { return asked_->grow(view, need_bytes); });
}

void guarded_policy::grew(const pool_view& after, std::uint64_t bytes) {
  ask("grew", [&] { asked_->grew(after, bytes); });
}

std::uint64_t guarded_policy::smaller(std::uint64_t refused_bytes, std::uint64_t least_bytes) {
  return ask("smaller", [&] { return asked_->smaller(refused_bytes, least_bytes); });
}

page_rules guarded_policy::pages(const pool_view& view) const {
  return ask("pages", [&] { return asked_->pages(view); });
}

page_request guarded_policy::page_in(const pool_view& view, std::uint64_t need_bytes,
                                     std::uint64_t missing_bytes) const {
  return ask("page_in", [&] { return asked_->page_in(view, need_bytes, missing_bytes); });
}

bool guarded_policy::gives_back(give_back why, const pool_view& view) const {
  return ask("gives_back", [&] { return asked_->gives_back(why, view); });
}

unsigned guarded_policy::class_of_several(std::uint64_t bytes) const {
  const unsigned answer = ask("segment_class", [&] { return asked_->segment_class(bytes); });
  if (answer >= classes_) {
    fail("segment_class",
         fmt::format("answered {} for {} bytes; expected less than {}", answer, bytes, classes_).c_str());
  }
  return answer;
}

}  // namespace gpumem
