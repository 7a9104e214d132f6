/// A stack machine without the instructions that can run code.
#include "pickle.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <string>

#include "reader_limits.hpp"

namespace gpumem::bench {

std::optional<std::int64_t> pickle_data::integer(index position) const noexcept {
  const node& n = nodes_[position];
  if (n.type != kind::integer && n.type != kind::boolean) return std::nullopt;
  return n.number;
}

std::optional<std::string_view> pickle_data::text(index position) const noexcept {
  const node& n = nodes_[position];
  if (n.type != kind::text) return std::nullopt;
  return bytes_.substr(static_cast<std::size_t>(n.number), n.length);
}

std::span<const pickle_data::index> pickle_data::items(index position) const noexcept {
  const node& n = nodes_[position];
  if (n.type != kind::list && n.type != kind::dictionary) return {};
  const auto first = static_cast<std::size_t>(n.number);
  return n.grown ? std::span{grown_[first]} : std::span{items_}.subspan(first, n.length);
}

std::optional<pickle_data::index> pickle_data::find(index dictionary, std::string_view key) const noexcept {
  if (kind_of(dictionary) != kind::dictionary) return std::nullopt;
  const std::span<const index> all = items(dictionary);
  if (all.size() > 2 * most_keys) return std::nullopt;
  for (std::size_t i = all.size(); i >= 2; i -= 2) {
    if (text(all[i - 2]) == key) return all[i - 1];
  }
  return std::nullopt;
}

namespace {

/// The refused instructions that occur in existing files.
std::string name_of(unsigned char code) {
  switch (code) {
    case 'c':
      return "GLOBAL, which names a class";
    case 0x93:
      return "STACK_GLOBAL, which names a class";
    case 'R':
      return "REDUCE, which calls something";
    case 'i':
      return "INST, which makes an object";
    case 'o':
      return "OBJ, which makes an object";
    case 0x81:
      return "NEWOBJ, which makes an object";
    case 0x92:
      return "NEWOBJ_EX, which makes an object";
    case 'b':
      return "BUILD, which fills an object";
    case 'P':
    case 'Q':
      return "a persistent id, which refers to an outside object";
    case 0x82:
    case 0x83:
    case 0x84:
      return "an extension, which names a class";
    default:
      return fmt::format("instruction {:#04x}", code);
  }
}

}  // namespace

class pickle_machine {
 public:
  using index = pickle_data::index;
  using kind = pickle_data::kind;
  explicit pickle_machine(std::string_view bytes) : bytes_{bytes} { data_.bytes_ = bytes; }

  result<pickle_data> run(bool* cut) {
    for (;;) {
      began_ = offset_;
      std::uint64_t code = 0;
      status done = take(1, code) ? status{} : bad("the file ends within the data");
      if (code == '.') break;
      if (done) done = step(static_cast<unsigned char>(code));
      if (!done && ended_ && cut != nullptr) {
        *cut = true;
        close();
        break;
      }
      if (!done) return done;
      if (memory() > most_reader_bytes(bytes_.size())) return bad("the data needs more memory than a reader takes");
    }
    if (stack_.size() != 1 || !marks_.empty()) return bad("not one value is left at the end");
    data_.root_ = stack_.back();
    return std::move(data_);
  }

 private:
  [[nodiscard]] status bad(std::string_view reason) const {
    return {errc::corrupt, fmt::format("byte {}: {}", began_, reason)};
  }

  /// Whether the file ends before that many more bytes.
  bool missing(std::uint64_t count) noexcept {
    ended_ = bytes_.size() - offset_ < count;
    return ended_;
  }

  /// Reads a little-endian number of `width` bytes.
  bool take(std::size_t width, std::uint64_t& number) {
    if (missing(width)) return false;
    number = 0;
    for (std::size_t i = 0; i < width; ++i) {
      number |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes_[offset_ + i])) << (8 * i);
    }
    offset_ += width;
    return true;
  }

  /// The memory of all values so far.
  [[nodiscard]] std::uint64_t memory() const noexcept {
    constexpr std::uint64_t of_grown = sizeof(std::vector<index>) + 2 * sizeof(std::max_align_t);
    return data_.nodes_.size() * sizeof(pickle_data::node) + marks_.capacity() * sizeof(std::size_t) +
           (data_.items_.capacity() + stack_.capacity() + memo_.capacity() + 2 * grown_items_) * sizeof(index) +
           data_.grown_.size() * of_grown;
  }

  void push(pickle_data::node added) {
    data_.nodes_.push_back(added);
    stack_.push_back(static_cast<index>(data_.nodes_.size() - 1));
  }
  status push_integer(std::int64_t value) {
    push({.number = value, .type = kind::integer});
    return {};
  }
  status push_container(kind container, std::span<const index> items) {
    push({.type = container});
    return items.empty() ? status{} : add_to(container, items);
  }

  status integer(std::size_t width, bool negative_too) {
    std::uint64_t bits = 0;
    if (!take(width, bits)) return bad("a number is cut short");
    if (negative_too) return push_integer(static_cast<std::int32_t>(static_cast<std::uint32_t>(bits)));
    return push_integer(static_cast<std::int64_t>(bits));
  }
  /// Reads a length and a two's complement number of that many bytes.
  status long_integer() {
    std::uint64_t width = 0;
    std::uint64_t bits = 0;
    if (!take(1, width) || missing(width)) return bad("a number is cut short");
    if (width > 8) return bad("a number of more than 64 bits");
    (void)take(width, bits);
    if (width > 0 && width < 8 && bits >> (8 * width - 1) != 0) bits |= ~std::uint64_t{0} << (8 * width);
    return push_integer(static_cast<std::int64_t>(bits));
  }
  status text(std::size_t width) {
    std::uint64_t length = 0;
    if (!take(width, length) || missing(length)) return bad("a text is cut short");
    push({.number = static_cast<std::int64_t>(offset_),
          .length = static_cast<std::uint32_t>(length),
          .type = kind::text});
    offset_ += length;
    return {};
  }

  /// Removes the values above the topmost mark, and the mark.
  bool take_mark(std::vector<index>& items) {
    if (marks_.empty()) return false;
    const std::size_t begin = marks_.back();
    marks_.pop_back();
    items.assign(stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
    stack_.resize(begin);
    return true;
  }
  /// The topmost `count` values, all above the topmost mark.
  bool take_top(std::size_t count, std::vector<index>& items) {
    if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) < count) return false;
    items.assign(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return true;
  }
  status add_to(kind wanted, std::span<const index> items) {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) return bad("nothing to add to");
    pickle_data::node& onto = data_.nodes_[stack_.back()];
    if (onto.type != wanted || (wanted == kind::dictionary && items.size() % 2 != 0))
      return bad("cannot be added to that");
    if (items.empty()) return {};
    if (onto.length == 0 && !onto.grown) {
      onto.number = static_cast<std::int64_t>(data_.items_.size());
      onto.length = static_cast<std::uint32_t>(items.size());
      data_.items_.insert(data_.items_.end(), items.begin(), items.end());
      return {};
    }
    if (!onto.grown) {
      const std::span<const index> before = data_.items(stack_.back());
      data_.grown_.emplace_back(before.begin(), before.end());
      grown_items_ += before.size();
      onto.number = static_cast<std::int64_t>(data_.grown_.size() - 1);
      onto.grown = true;
    }
    std::vector<index>& all = data_.grown_[static_cast<std::size_t>(onto.number)];
    all.insert(all.end(), items.begin(), items.end());
    grown_items_ += items.size();
    return {};
  }

  [[nodiscard]] kind kind_at(std::size_t place) const noexcept { return data_.nodes_[stack_[place]].type; }

  /// Closes the containers that a cut file left open: moves the values above each mark into the container below it.
  void close() {
    while (!marks_.empty() && marks_.back() > 0) {
      const std::size_t begin = marks_.back();
      marks_.pop_back();
      const kind container = kind_at(begin - 1);
      if (container == kind::dictionary) append_pending_items(begin);
      std::vector<index> items{stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end()};
      stack_.resize(begin);
      if (container == kind::dictionary && items.size() % 2 != 0) items.pop_back();
      if (container == kind::dictionary || container == kind::list) (void)add_to(container, items);
    }
    marks_.clear();
    if (!stack_.empty()) stack_.erase(stack_.begin() + 1, stack_.end());
  }
  /// Keys and values alternate above a dictionary's mark. Values after a list that are not keys are items that the cut
  /// file had not yet appended to the list; appends them.
  void append_pending_items(std::size_t begin) {
    std::size_t value = begin + 1;
    while (value + 1 < stack_.size() && kind_at(value + 1) == kind::text) value += 2;
    while (stack_.size() > value + 1 && kind_at(stack_.size() - 2) == kind::list) {
      scratch_.assign(1, stack_.back());
      stack_.pop_back();
      (void)add_to(kind::list, scratch_);
    }
  }

  status remember(std::uint64_t memo_index) {
    if (stack_.empty()) return bad("nothing to remember");
    if (memo_index > offset_) return bad(fmt::format("value {} is remembered among fewer values", memo_index));
    if (memo_index >= memo_.size()) memo_.resize(memo_index + 1, unset);
    memo_[memo_index] = stack_.back();
    return {};
  }
  status recall(std::size_t width) {
    std::uint64_t memo_index = 0;
    if (!take(width, memo_index)) return bad("a reference is cut short");
    if (memo_index >= memo_.size() || memo_[memo_index] == unset)
      return bad(fmt::format("value {} was never remembered", memo_index));
    stack_.push_back(memo_[memo_index]);
    return {};
  }
  status remember_as(std::size_t width) {
    std::uint64_t memo_index = 0;
    if (!take(width, memo_index)) return bad("a reference is cut short");
    return remember(memo_index);
  }
  status skip(std::size_t bytes) {
    std::uint64_t ignored = 0;
    return take(bytes, ignored) ? status{} : bad("the file ends within the data");
  }

  status step(unsigned char code) {
    switch (code) {
      case 0x80: {  // PROTO
        std::uint64_t version = 0;
        if (!take(1, version) || version < 2 || version > 5) return bad("not a pickle of protocol 2 to 5");
        return {};
      }
      case 0x95:  // FRAME
        return skip(8);
      case 'N':
        push({});
        return {};
      case 0x88:
      case 0x89:
        push({.number = code == 0x88 ? 1 : 0, .type = kind::boolean});
        return {};
      case 'J':
        return integer(4, true);
      case 'K':
        return integer(1, false);
      case 'M':
        return integer(2, false);
      case 0x8a:
        return long_integer();
      case 'G': {  // skips the value: readers use no floats
        if (status skipped = skip(8); !skipped) return skipped;
        push({.type = kind::real});
        return {};
      }
      case 0x8c:
        return text(1);
      case 'X':
        return text(4);
      case 0x8d:
        return text(8);
      default:
        return step_container(code);
    }
  }

  status step_container(unsigned char code) {
    std::vector<index>& items = scratch_;
    items.clear();
    switch (code) {
      case '(':
        marks_.push_back(stack_.size());
        return {};
      case '}':
        return push_container(kind::dictionary, {});
      case ']':
      case ')':
        return push_container(kind::list, {});
      case 't':
        return take_mark(items) ? push_container(kind::list, items) : bad("no mark");
      case 0x85:
      case 0x86:
      case 0x87:
        return take_top(code - 0x84U, items) ? push_container(kind::list, items) : bad("too few values for a tuple");
      case 'a':
        return take_top(1, items) ? add_to(kind::list, items) : bad("nothing to append");
      case 's':
        return take_top(2, items) ? add_to(kind::dictionary, items) : bad("nothing to set");
      case 'e':
        return take_mark(items) ? add_to(kind::list, items) : bad("no mark");
      case 'u':
        return take_mark(items) ? add_to(kind::dictionary, items) : bad("no mark");
      case 0x94:  // MEMOIZE
        return remember(memo_.size());
      case 'q':
        return remember_as(1);
      case 'r':
        return remember_as(4);
      case 'h':
        return recall(1);
      case 'j':
        return recall(4);
      default:
        return bad(name_of(code) + "; only numbers, texts, lists, tuples and dictionaries are read");
    }
  }

  std::string_view bytes_;
  std::size_t offset_ = 0;
  std::size_t began_ = 0;  ///< start of the current instruction
  bool ended_ = false;     ///< the latest instruction needed bytes beyond the end of the file
  std::vector<index> stack_;
  std::vector<std::size_t> marks_;
  std::vector<index> scratch_;
  static constexpr index unset = ~index{0};
  std::vector<index> memo_;  ///< by number; Python numbers values consecutively
  std::uint64_t grown_items_ = 0;
  pickle_data data_;
};

result<pickle_data> pickle_data::read(std::string_view bytes, bool* cut) {
  if (bytes.size() > most_bytes) return status{errc::corrupt, "more than 2 GiB; expected a smaller snapshot"};
  return pickle_machine{bytes}.run(cut);
}

}  // namespace gpumem::bench
