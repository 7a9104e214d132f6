/// The data of a Python pickle: numbers, strings, lists, tuples and dictionaries, and nothing executable.
///
/// Reads protocols 2 to 5. Refuses every other instruction by name, above all those that name a class or call
/// something. Values are nodes of one array, referred to by index: shared values are stored once, and a file that
/// contains itself costs no more than its bytes. A file that needs more memory than reader_limits.hpp allows is
/// refused.
#pragma once

#include <cstdint>
#include <deque>
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

  static constexpr std::size_t most_bytes = std::size_t{1} << 31;  ///< 32 bits can then index every value
  static constexpr std::size_t most_keys = 256;                    ///< of a dictionary that `find` looks through

  /// `corrupt` names the byte offset and the byte or instruction there. Texts are views of `bytes`, which must outlive
  /// this. With `cut`, reads a file whose end is missing as far as possible and sets `cut`: containers end with their
  /// last whole item, and the innermost ones may have fewer items than were written.
  static result<pickle_data> read(std::string_view bytes, bool* cut = nullptr);

  [[nodiscard]] index root() const noexcept { return root_; }
  [[nodiscard]] kind kind_of(index position) const noexcept { return nodes_[position].type; }
  /// For `integer` and `boolean`.
  [[nodiscard]] std::optional<std::int64_t> integer(index position) const noexcept;
  [[nodiscard]] std::optional<std::string_view> text(index position) const noexcept;
  /// The items of a list or tuple; keys and values of a dictionary, alternating. Empty for other kinds.
  [[nodiscard]] std::span<const index> items(index position) const noexcept;
  /// The value of a text key; of duplicates the last. Empty for a dictionary of more than `most_keys` keys, which no
  /// snapshot has: many references to one would take time with the square of the file's size.
  [[nodiscard]] std::optional<index> find(index dictionary, std::string_view key) const noexcept;

 private:
  friend class pickle_machine;
  struct node {
    std::int64_t number = 0;   ///< text: offset in the bytes; container: offset in `items_`, or index into `grown_`
    std::uint32_t length = 0;  ///< of a text, or of a container's items in `items_`
    kind type = kind::none;
    bool grown = false;  ///< a container that was added to more than once
  };
  std::string_view bytes_;
  std::deque<node> nodes_;
  std::vector<index> items_;
  std::deque<std::vector<index>> grown_;
  index root_ = 0;
};

}  // namespace gpumem::bench
