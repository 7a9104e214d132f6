// The referee: for each byte the last uses, and whether who gets it next is ordered behind all of them.
//
// A race detector over addresses. Regions are disjoint; each keeps the uses that no later use is ordered behind, so
// one for each stream at most. A hand-out checks the uses of its bytes, then replaces them: who is ordered behind
// the receiver is ordered behind them too. README.md has a worked example.
// No lock: sim_device's. It reads the memory and asks the streams about order; it changes neither.
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

  /// Checks that `as`, work of the stream `to`, may use the bytes; from here on they are used by it alone.
  /// A stream that does not exist has `no_stream` as its index: it is ordered behind what the host knows done.
  void handed_out(address at, std::uint64_t bytes, stream_ref to, work_point as);
  void given_back(address at) { handed_out_.erase(at); }
  void used(address at, std::uint64_t bytes, work_point by);
  /// The driver takes the bytes away: checks that none is handed out or in use, and forgets them.
  void taken_away(address at, std::uint64_t bytes);

  [[nodiscard]] std::uint64_t hazard_count() const noexcept { return hazard_count_; }
  [[nodiscard]] const std::vector<hazard>& hazards() const noexcept { return hazards_; }

 private:
  struct region {
    address end = 0;
    work_point use;
    std::vector<work_point> more;  ///< uses by other streams; seldom any
  };
  using region_map = std::map<address, region>;
  struct holding {
    address end = 0;
    stream_ref holder;
  };

  /// Splits regions so that none crosses `begin` or `end`; the first one at or behind `begin`.
  region_map::iterator split(address begin, address end);
  void split_at(address at);
  /// Adds a use and drops those that come before it.
  void add_use(region& r, work_point by) const;
  /// Reports those uses from `first` up to `end` that do not come before work on `stream`, one hazard a user.
  void check(region_map::iterator first, address end, hazard_kind kind, std::uint32_t stream, stream_ref receiver);
  void check_use(const region_map::value_type& r, work_point use, std::uint32_t stream);
  /// Reports each block handed out within the bytes and ends its handing-out.
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
  std::vector<offence> offences_;  ///< of the check under way; a member so that a check does not allocate
  std::uint64_t hazard_count_ = 0;
  std::vector<hazard> hazards_;
};

}  // namespace gpumem
