/// Support for tests of comm: members on threads, data made from a seed, and the slow oracle.
#pragma once

#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/group/group.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/comm/solo/solo.h"

#include "tests/support/tcp_members.h"

namespace tutti::test {

/// Runs `body(group)` on one thread a member and returns what each threw ("" for nothing).
inline std::vector<std::exception_ptr> run_members(
    const std::vector<std::shared_ptr<Engine>>& engines, const std::function<void(Group)>& body) {
  std::vector<std::exception_ptr> thrown(engines.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < engines.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        body(Group(engines[r]));
      } catch (...) {
        thrown[r] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  return thrown;
}

/// The same, rethrowing the first.
inline void run_all_members(const std::vector<std::shared_ptr<Engine>>& engines,
                            const std::function<void(Group)>& body) {
  for (const auto& thrown : run_members(engines, body))
    if (thrown) std::rethrow_exception(thrown);
}

/// Class and text of an exception: "Timeout: all_reduce #1, ...".
inline std::string words_of(const std::exception_ptr& thrown) {
  if (!thrown) return "";
  try {
    std::rethrow_exception(thrown);
  } catch (const UsageError& error) {
    return std::string("UsageError: ") + error.what();
  } catch (const PeerLost& error) {
    return std::string("PeerLost: ") + error.what();
  } catch (const Timeout& error) {
    return std::string("Timeout: ") + error.what();
  } catch (const Mismatch& error) {
    return std::string("Mismatch: ") + error.what();
  } catch (const Error& error) {
    return std::string("Error: ") + error.what();
  } catch (const std::exception& error) {
    return std::string("std::exception: ") + error.what();
  }
}

/// What each member threw; "" for nothing.
inline std::vector<std::string> errors_of(const std::vector<std::shared_ptr<Engine>>& members,
                                          const std::function<void(Group)>& body) {
  std::vector<std::string> words;
  for (const auto& thrown : run_members(members, body)) words.push_back(words_of(thrown));
  return words;
}

/// Makers of members by the name of their engine, for engines that not every test links.
using MakeMembers = std::function<std::vector<std::shared_ptr<Engine>>(int size)>;
inline std::map<std::string, MakeMembers>& more_engines() {
  static std::map<std::string, MakeMembers> all;
  return all;
}

/// Engines of one group of `size`: "solo"; "shm" (buffers of threads are visible to all); "shm
/// staged" (as between processes: only memory from allocate() is); "tcp" over socket pairs, or "tcp
/// loopback" over two TCP streams a peer for each of three sums at a time, both in small pieces.
inline std::vector<std::shared_ptr<Engine>> make_engines(const std::string& name, int size,
                                                         const ShmOptions& options = {}) {
  if (const auto more = more_engines().find(name); more != more_engines().end())
    return more->second(size);
  if (name == "solo") return {make_solo()};
  if (name == "shm") return make_shm_threads(size, options);
  const TcpOptions small_pieces{.chunk_bytes = 4096, .min_stripe_bytes = 4096};
  if (name == "tcp") return make_tcp_members(size, small_pieces);
  if (name == "tcp loopback") return make_tcp_members(size, small_pieces, 2, Wire::loopback, 3);
  const ShmSegment segment = ShmSegment::create(size, options);
  std::vector<std::shared_ptr<Engine>> engines(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] { engines[r] = make_shm(segment, r, false); });
  for (auto& thread : threads) thread.join();
  return engines;
}

}  // namespace tutti::test
