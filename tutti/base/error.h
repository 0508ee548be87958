/// Error classes, split by what the reader has to do next, and the always-on check of invariants.
///
/// A message has four parts: operation and place; what happened, got and expected; who else is
/// concerned; what to try. Ranks are named in words ("rank 3 of 8").
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace tutti {

/// Base of all errors that tutti throws on purpose. Exit code 1 unless a subclass says otherwise.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Wrong use: fix the program, the flags or the configuration. Exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A rank went away (died, left, closed): rebuild the group and resume, or end.
class PeerLost : public Error {
 public:
  using Error::Error;
};

/// A limit passed: look at the ranks that the message names.
class Timeout : public Error {
 public:
  using Error::Error;
};

/// Ranks disagree: compare the two calls that the message names.
class Mismatch : public Error {
 public:
  using Error::Error;
};

/// A file is damaged, truncated or of the wrong kind: fix or replace it. Exit code 2 before work.
class DataError : public Error {
 public:
  using Error::Error;
};

/// The job was asked to end (Ctrl-C, SIGTERM): unwind in order, no stack trace. Exit code
/// 128+signal.
class Interrupted : public Error {
 public:
  Interrupted(int signal, const std::string& what) : Error(what), signal_(signal) {}
  int signal() const noexcept { return signal_; }

 private:
  int signal_;
};

/// Throws an Error that asks for a report, with place and values, when an invariant does not hold.
/// Always on: release builds check too.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& values);

/// Words for an errno value: "No such file or directory (errno 2)".
std::string errno_words(int error_number);

/// What an exception says, for people: printable() (printable.h), without the stack trace that ends
/// LibTorch's texts.
std::string plain_words(std::string_view what);

}  // namespace tutti
