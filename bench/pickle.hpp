/// The data of a Python pickle: numbers, strings, lists, tuples and dictionaries, and nothing executable.
///
/// Reads protocols 2 to 5. Refuses every other instruction by name, above all those that name a class or call
/// something. Values are nodes of one array, referred to by index: shared values are stored once, and a file that
/// contains itself costs no more than its bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::bench {

class pickle_data {
 public:
  using index = std::uint32_t;
  enum class kind : std::uint8_t { none, boolean, integer, real, text, list, dictionary };

  /// `corrupt` names the byte offset and what is there. Texts are views of `bytes`, which must outlive this.
  static result<pickle_data> read(std::string_view bytes);

  [[nodiscard]] index root() const noexcept { return root_; }
  [[nodiscard]] kind kind_of(index of) const noexcept { return nodes_[of].what; }
  /// For `integer` and `boolean`.
  [[nodiscard]] std::optional<std::int64_t> integer(index of) const noexcept;
  [[nodiscard]] std::optional<std::string_view> text(index of) const noexcept;
  /// The items of a list or tuple; keys and values of a dictionary, alternating. Empty for other kinds.
  [[nodiscard]] std::span<const index> items(index of) const noexcept;
  /// The value of a text key; of duplicates the last.
  [[nodiscard]] std::optional<index> find(index dictionary, std::string_view key) const noexcept;

 private:
  friend class pickle_machine;
  struct node {
    kind what = kind::none;
    std::int64_t number = 0;  ///< containers: index into `containers_`
    std::string_view text{};
  };
  std::vector<node> nodes_;
  std::vector<std::vector<index>> containers_;
  index root_ = 0;
};

}  // namespace gpumem::bench
