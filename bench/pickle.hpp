/// The data of a Python pickle: numbers, strings, lists, tuples and dictionaries, and nothing that could run.
///
/// Reads protocols 2 to 5. Every other instruction, above all those that name a class or call something, is refused
/// by its name. Values are nodes of one array, named by index, so what a file shares is shared here and a file that
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

  /// `corrupt` names the byte and what stands there. The texts are views into `bytes`, which must outlive this.
  static result<pickle_data> read(std::string_view bytes);

  [[nodiscard]] index root() const noexcept { return root_; }
  [[nodiscard]] kind kind_of(index of) const noexcept { return nodes_[of].what; }
  /// Of `integer` and `boolean`.
  [[nodiscard]] std::optional<std::int64_t> integer(index of) const noexcept;
  [[nodiscard]] std::optional<std::string_view> text(index of) const noexcept;
  /// The items of a list or tuple; of a dictionary, keys and values in turn. Empty for everything else.
  [[nodiscard]] std::span<const index> items(index of) const noexcept;
  /// The value of a text key; the last one where a key stands twice.
  [[nodiscard]] std::optional<index> find(index dictionary, std::string_view key) const noexcept;

 private:
  friend class pickle_machine;
  struct node {
    kind what = kind::none;
    std::int64_t number = 0;  ///< of containers: which entry of `containers_`
    std::string_view text{};
  };
  std::vector<node> nodes_;
  std::vector<std::vector<index>> containers_;
  index root_ = 0;
};

}  // namespace gpumem::bench
