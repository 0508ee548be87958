/// What a process needs of its three standard streams before it works: that they are there, that a
/// write that fails is an error and no death, and that words which nobody takes end nothing.
///
/// A process that uses this file has all three from before main() on (open_missing_streams()).
/// Thread rule: every function may be called from any thread.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string_view>
#include <utility>

#include "tutti/base/printable.h"

namespace tutti {

/// Where stdin, stdout or stderr is closed (daemons, `2>&-`), it is /dev/null from now on: the next
/// file that is opened would get its number, and be printed into.
void open_missing_streams() noexcept;

/// From now on a write to a reader that has gone, or to a file that has reached its limit (`ulimit
/// -f`), is an error (EPIPE, EFBIG) and not the death of the process by SIGPIPE or SIGXFSZ. A
/// program's own handlers stay, and programs that it starts are not affected.
void make_failed_writes_errors() noexcept;

/// Words about the work, which go on to no one where `stream` cannot be written: a reader that has
/// gone (`| head`), or a full disk, of which the log has a warning, once. Never throws for that.
void say_words(std::FILE* stream, std::string_view text);

/// say_to(stderr, "{} samples\n", count)
template <class... Args>
void say_to(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  say_words(stream, fmt::format(format, std::forward<Args>(args)...));
}

/// The same to stdout.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  say_words(stdout, fmt::format(format, std::forward<Args>(args)...));
}

/// A line of them in which others may have a part (names of files, columns, classes): printable().
template <class... Args>
void say_line(fmt::format_string<Args...> format, Args&&... args) {
  say("{}\n", printable(fmt::format(format, std::forward<Args>(args)...)));
}

/// For results, which must not be lost: what was printed to stdout leaves this process now. Throws
/// std::system_error where it cannot, as fmt::print does.
void flush_results();

}  // namespace tutti
