// The slots of streams, graphs and batches: one record each, found by owner, key, handle or graph number.
//
// The pool's lock guards everything.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "heap.hpp"
#include "stream_handle.hpp"
#include "tracked_fence.hpp"

namespace gpumem {

struct stream_slot {
  enum class kind : std::uint8_t {
    stream,
    graph,       ///< owns a capture's allocations, which no other owner may use
    everything,  ///< represents all work of the device: its fences are on the whole context
  };
  struct pending {
    std::uint64_t epoch;
    fence_index fence;
  };
  struct free_batch {
    std::uint32_t frees = 0;
    std::uint64_t bytes = 0;
  };
  struct query_record {
    std::uint64_t round = 0;   ///< the latest `stream_order::begin_round` since which a fence was found pending
    std::uint64_t number = 0;  ///< the lowest number of such a fence; later ones are not queried in that round
  };
  struct graph_record {
    std::uint64_t origin_key = 0;          ///< the key of the capturing stream
    owner_id withheld_owner = idle_owner;  ///< owns blocks that other streams of its capture freed
    /// A region opened while its stream captured: `origin_key` may be made of the handle, so the handles decide until a
    /// request outside of captures sets the key.
    bool known_by_handle = false;
  };

  bool in_use = false;
  bool ended = false;  ///< the stream ended, or the graph was released
  kind represents = kind::stream;
  bool dirty = false;   ///< something was freed since the last fence
  free_batch unfenced;  ///< freed since the last fence
  query_record found_pending;
  std::uint32_t handle_calls = 0;  ///< fences that are being recorded on the stream's handle
  bool needed_by_plan = false;     ///< a plan gives some of this memory to another stream
  bool is_watched = false;         ///< `stream_slots::visit_watched` visits it
  bool was_named = false;          ///< named since streams were last forgotten
  stream_ref stream;
  std::uint64_t key = 0;         ///< the stream's key, or the graph's number
  std::uint64_t foreign = 0;     ///< the context of the stream or graph, if it is not the device's own; else 0
  graph_record captured;         ///< for a graph
  owner_id graph = idle_owner;   ///< while capturing: the graph's slot
  std::uint64_t epoch = 1;       ///< never repeats a value, even when another stream gets the slot
  std::uint64_t done = 0;        ///< everything freed up to this epoch is known to be done
  std::uint32_t references = 0;  ///< blocks, uses and requests that name this slot
  std::vector<pending> fences;   ///< oldest first
  std::unordered_map<owner_id, std::uint64_t>
      waited;  ///< by slot: the epoch up to which this stream is ordered behind it

  [[nodiscard]] bool is_graph() const noexcept { return represents == kind::graph; }
  [[nodiscard]] bool capturing() const noexcept { return graph != idle_owner; }
  /// Whether other streams may reuse its free memory behind a fence. False for a graph that may run again.
  [[nodiscard]] bool serves_others() const noexcept { return in_use && (!is_graph() || ended); }
};

class stream_slots {
 public:
  explicit stream_slots(heap& heap) : heap_{heap} { slots_.emplace_back(); }

  [[nodiscard]] stream_slot& operator[](owner_id owner) noexcept { return slots_[owner]; }
  [[nodiscard]] const stream_slot& operator[](owner_id owner) const noexcept { return slots_[owner]; }
  [[nodiscard]] owner_id end() const noexcept { return static_cast<owner_id>(slots_.size()); }
  /// The slot of the stream with that key that has not ended; `idle_owner` if there is none.
  [[nodiscard]] owner_id find(std::uint64_t key) const noexcept { return slot_in(by_key_, key); }
  /// The slot of the latest stream with that handle, which may have ended; `idle_owner` if none is known.
  [[nodiscard]] owner_id latest(stream_ref stream) const noexcept { return slot_in(by_handle_, number_of(stream)); }
  /// The key of that stream; does not ask the driver.
  [[nodiscard]] std::optional<std::uint64_t> key_of_handle(stream_ref stream) const noexcept;
  /// The key of a created stream of the context `foreign` while it captures, when the driver does not tell its id: that
  /// of the latest stream with the handle, if it had the same context, or a key made of the handle. The stream may be a
  /// later one with that handle, so only its graph and its regions may own its allocations.
  [[nodiscard]] std::uint64_t key_while_capturing(stream_ref stream, std::uint64_t foreign) const noexcept {
    constexpr std::uint64_t no_id = std::uint64_t{1} << 63;  // the driver's ids are small
    constexpr std::uint64_t own_bits = (std::uint64_t{1} << 62) - 1;
    constexpr std::uint64_t odd = 0x9E3779B97F4A7C15;  // spreads the bits of a context's address
    const owner_id owner = latest(stream);
    if (owner != idle_owner && slots_[owner].foreign == foreign) return slots_[owner].key;
    return ((number_of(stream) ^ foreign * odd) & own_bits) | no_id;
  }
  /// The slot of a graph that has not been removed; `idle_owner` if there is none.
  [[nodiscard]] owner_id find_graph(std::uint64_t number) const noexcept { return slot_in(graphs_, number); }

  // Each adds a slot, with an owner of its own in the heap. Throws std::bad_alloc with nothing changed.
  owner_id add();
  /// With `by_handle` the slot is found by its stream's handle as well.
  owner_id add_stream(stream_ref stream, std::uint64_t key, std::uint64_t foreign, bool by_handle);
  /// A graph that `origin` captures. Its work runs in the context of that stream, and is fenced there.
  owner_id add_graph(owner_id origin);
  /// The stream ended: `find` finds it no more.
  void forget_key(std::uint64_t key) noexcept { by_key_.erase(key); }
  /// Requires that nothing refers to the slot and that its fences are dropped. The next stream's epochs exceed all that
  /// other streams have waited for.
  void remove(owner_id owner) noexcept;

  /// The number of streams that `find` finds.
  [[nodiscard]] std::size_t streams() const noexcept { return by_key_.size(); }
  /// Calls `forgets(owner)` for each of them; where it returns true, `find` finds the stream no more.
  template <typename Forgets>
  void forget_streams_if(const Forgets& forgets) {
    std::erase_if(by_key_, [&](const auto& named) { return named.second == idle_owner || forgets(named.second); });
  }

  /// Adds the slot to those that `visit_watched` visits, and so `stream_order::poll`.
  void watch(owner_id owner) noexcept {
    if (!std::exchange(slots_[owner].is_watched, true)) watched_.push_back(owner);
  }
  /// Calls `visit(owner)` for each watched slot. A slot stays watched while it has fences, and once it ended.
  template <typename Visit>
  void visit_watched(const Visit& visit) {
    std::erase_if(watched_, [&](owner_id owner) {
      stream_slot& slot = slots_[owner];
      if (slot.in_use) visit(owner);
      slot.is_watched = slot.in_use && (slot.ended || !slot.fences.empty());
      return !slot.is_watched;
    });
  }

  /// The number of slots of streams and batches.
  [[nodiscard]] std::uint64_t in_use() const noexcept { return in_use_; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;

 private:
  owner_id take();

  heap& heap_;
  std::vector<stream_slot> slots_;                                      // by owner; slot 0 is idle memory
  using slots_by_number = std::unordered_map<std::uint64_t, owner_id>;  // `idle_owner`: none
  slots_by_number by_key_;                                              // of streams that have not ended
  slots_by_number graphs_;
  slots_by_number by_handle_;      // the latest slot of a handle; its stream may have ended
  std::vector<owner_id> watched_;  // slots with fences, and those that have ended; each once
  std::uint64_t next_graph_ = 1;
  std::uint64_t in_use_ = 0;
};

}  // namespace gpumem
