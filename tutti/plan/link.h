/// Link: what lies between two hosts, as people write it: "25Gbit,20us".
///
/// Thread rule: a value and pure functions.
#pragma once

#include <string>
#include <string_view>

namespace tutti::plan {

struct Link {
  double bytes_per_second = 1.25e9;  ///< each way at once, > 0
  double latency = 50e-6;            ///< seconds until a message's first byte is there, >= 0
  bool operator==(const Link&) const = default;
};

/// Bits a second with kbit, Mbit, Gbit or Tbit (powers of 1000), or bytes with MB or GB, then
/// seconds with s, ms, us or ns. Throws UsageError for a number without unit, for a rate
/// that is not from 1 to 10^15 bytes a second, for a latency that is not from 0 to an hour, and for
/// other words, with an example.
Link parse_link(std::string_view text);

/// "25 Gbit/s, 20 us".
std::string words_of(const Link& link);

}  // namespace tutti::plan
