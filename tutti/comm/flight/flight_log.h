/// FlightLog: the last operations of one member of one group, as Group and Work note them.
///
/// A ring of fixed size. Noting an operation takes no lock, no memory, and no clock unless asked.
/// Thread rule: begin, done and failed from the member's thread; read from any thread, which sees
/// each operation whole or not at all. failed may also come from a thread that aborts.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/comm/engine/detail/call.h"
#include "tutti/comm/flight/flight_mark.h"
#include "tutti/comm/flight/flight_record.h"

namespace tutti {

/// Where in the program an operation was called. The texts live as long as the process.
struct CallPlace {
  CallPlace() = default;
  CallPlace(const std::source_location& site) noexcept  // NOLINT: what every caller in C++ has
      : file(site.file_name()), function(site.function_name()), line(site.line()) {}
  CallPlace(const char* in_file, uint32_t at_line, const char* in_function) noexcept
      : file(in_file), function(in_function), line(at_line) {}

  const char* file = "";  ///< "" unknown
  const char* function = "";
  uint32_t line = 0;
};

/// Of one member, which is made with its group (make_flight_log).
class FlightLog {
 public:
  static constexpr uint64_t kOperations = 1000;

  FlightLog(std::string name, const Engine& engine);

  using Mark = FlightMark;

  /// Notes that an operation begins. `timed`: with the time, for operations that go on later.
  Mark begin(const Operation& operation, const CallPlace& place, bool timed) noexcept;
  void done(const Mark& mark) noexcept;
  /// Collectives are carried out in order: this one and all before it are done.
  void done_now(const Mark& mark) noexcept {
    done_collectives_.store(mark.number, std::memory_order_release);
  }

  /// Notes that the group ended with an error. True the first time.
  bool failed(const Mark& mark, const std::string& why);

  /// The name of the group that this member gets from its next split; the same on all members.
  std::string name_of_split(int color);

  FlightGroup read() const;
  const std::string& name() const noexcept { return name_; }
  /// Who the members are elsewhere, in words that errors of the group end with; "": nothing is
  /// said.
  void say_members(std::string words) { members_ = std::move(words); }
  const std::string& members() const noexcept { return members_; }
  int rank() const noexcept { return rank_; }
  bool has_failed() const;

 private:
  enum State : uint32_t { kSubmitted, kDone, kFailed };

  // Every field is atomic so that a reader may look at any time; `version` is odd while they
  // change, and another one afterwards: who sees one even version before and after has a whole.
  struct Entry {
    std::atomic<uint64_t> version{0};
    std::atomic<uint64_t> position{0};
    std::atomic<uint64_t> number{0};
    std::atomic<uint64_t> kinds{0};  ///< collective, reduction, dtype, one byte each
    std::atomic<int64_t> elements{0};
    std::atomic<int> root{0};
    std::atomic<int> tag{0};
    std::atomic<const char*> file{nullptr};  ///< of a CallPlace
    std::atomic<const char*> function{nullptr};
    std::atomic<uint32_t> line{0};
    std::atomic<uint32_t> state{kSubmitted};
    std::atomic<int64_t> begun_ns{0};  ///< of Clock; 0 not taken
    std::atomic<int64_t> ended_ns{0};
  };

  Entry& entry_of(uint64_t position) { return entries_[(position - 1) % kOperations]; }
  void end(const Mark& mark, State state) noexcept;
  bool read_entry(const Entry& entry, uint64_t position, FlightOperation& operation,
                  uint64_t done) const;

  const std::string name_;
  std::string members_;
  const std::string engine_;
  const int rank_;
  const int size_;
  uint64_t collectives_ = 0;  // the member's thread alone
  uint64_t messages_ = 0;
  int splits_ = 0;
  std::atomic<uint64_t> positions_{0};         ///< operations ever noted
  std::atomic<uint64_t> done_collectives_{0};  ///< all up to this number are done
  std::array<Entry, kOperations> entries_;
  mutable std::mutex mutex_;
  std::string failure_;  // under mutex_
  bool has_failed_ = false;
};

/// The log of a new member, known to write_flight_record() as long as it lives. Null for a group of
/// one: nobody can differ from it. An empty name: the n-th group of this size here.
std::shared_ptr<FlightLog> make_flight_log(std::string name, const Engine& engine);

/// Notes the failure and, the first time and when the last local member of the group fails, writes
/// the record of this process. Never throws.
void note_failure(FlightLog& log, const FlightLog::Mark& mark, const std::string& why,
                  bool one_process) noexcept;

/// Throws the error, of its class, with what is said of the members behind it.
[[noreturn]] void throw_with_members(const FlightLog& log, const Error& error);

/// Calls `body`, and notes an error of the group that comes out of it.
template <class Body>
auto noting_failure(Engine& engine, const FlightMark& mark, const Body& body) {
  try {
    return body();
  } catch (const UsageError&) {
    throw;  // the group goes on
  } catch (const Error& error) {
    if (FlightLog* log = engine.flight_log()) {
      note_failure(*log, mark, error.what(), engine.one_process());
      if (!log->members().empty()) throw_with_members(*log, error);
    }
    throw;
  }
}

}  // namespace tutti
