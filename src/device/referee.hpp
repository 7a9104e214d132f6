// The referee: a race detector over addresses. It knows the last uses of each byte, and checks that the next receiver
// is ordered after all of them.
//
// Regions are disjoint. A region keeps each use that no later use is ordered after, at most one per stream. A hand-out
// checks the uses of its bytes and then replaces them, because work ordered after the receiver is ordered after them
// too. README.md has a worked example. sim_device holds the lock. The referee reads memory and stream order and changes
// neither.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "gpumem/sim_device.hpp"
#include "sim_memory.hpp"
#include "sim_streams.hpp"

namespace gpumem {

class referee {
 public:
  static constexpr std::size_t kept_hazards = 100;

  referee(const sim_memory& memory, const sim_streams& streams) : memory_{memory}, streams_{streams} {}

  /// Checks that `point`, work on the stream `receiver`, may use the bytes, and makes it their only use. If the stream
  /// does not exist, `point` has the index `no_stream` and is ordered only after work that the host knows is done.
  void handed_out(address begin, std::uint64_t bytes, stream_ref receiver, work_point point);
  void given_back(address begin) { handed_out_.erase(begin); }
  void used(address begin, std::uint64_t bytes, work_point point);
  /// Call when memory mapped at `source` is mapped at `target` as well: its receiver there must be ordered after its
  /// uses so far, too.
  void mapped_again(address source, address target, std::uint64_t bytes);
  /// Call when the driver takes the bytes back. Checks that none is handed out or in use, and forgets their uses.
  void taken_away(address begin, std::uint64_t bytes);

  [[nodiscard]] std::uint64_t hazard_count() const noexcept { return hazard_count_; }
  [[nodiscard]] const std::vector<hazard>& hazards() const noexcept { return hazards_; }

 private:
  struct region {
    address end = 0;
    work_point use;
    std::vector<work_point> more;  ///< uses by other streams; rarely any
    bool elsewhere = false;        ///< all of them used the memory at other addresses
  };
  using region_map = std::map<address, region>;
  struct holding {
    address end = 0;
    stream_ref holder;
  };

  /// Splits regions so that none crosses `begin` or `end`; returns the first one at or after `begin`.
  region_map::iterator split(address begin, address end);
  void split_at(address position);
  /// Adds the use `point` and drops the uses that it is ordered after.
  void add_use(region& touched, work_point point) const;
  /// Reports the uses from `first` up to `end` that work on `stream` is not ordered after, one hazard per user.
  void check(region_map::iterator first, address end, hazard_kind kind, std::uint32_t stream, stream_ref receiver);
  void check_use(const region_map::value_type& entry, work_point use, std::uint32_t stream);
  /// Reports each block in the range that is handed out, and marks it as returned.
  void check_held(address begin, address end, hazard_kind kind, stream_ref receiver);
  void report(hazard_kind kind, address begin, address end, stream_ref user, stream_ref receiver);

  struct offence {
    std::uint32_t stream = 0;
    address begin = 0;
    address end = 0;
  };

  const sim_memory& memory_;
  const sim_streams& streams_;
  region_map regions_;
  std::map<address, holding> handed_out_;
  std::vector<offence> offences_;  ///< of the current check; a member so that a check does not allocate
  std::uint64_t hazard_count_ = 0;
  std::vector<hazard> hazards_;
};

}  // namespace gpumem
