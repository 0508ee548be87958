#include "tutti/base/standard_streams.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/log.h"

namespace tutti {
namespace {

// Before any object of the program is made, which may open files.
[[gnu::constructor(101)]] void begin() { open_missing_streams(); }

// Not SIG_IGN, which programs that this one starts would inherit.
extern "C" void do_nothing(int /*signal*/) {}

}  // namespace

void open_missing_streams() noexcept {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest free number is this one. It stays open, as if the process had been given it.
    if (fcntl(number, F_GETFD) < 0) open("/dev/null", O_RDWR);
  }
}

void make_failed_writes_errors() noexcept {
  for (const int signal : {SIGPIPE, SIGXFSZ}) {
    struct sigaction before{};
    if (sigaction(signal, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;
    struct sigaction action{};
    action.sa_handler = do_nothing;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
}

void say_words(std::FILE* stream, std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  if (written && std::fflush(stream) == 0) return;
  const int failure = errno;
  // What stays in the buffer would fail whoever writes next, and the flush at the end.
  __fpurge(stream);
  std::clearerr(stream);
  if (failure != EPIPE)
    log_once(fmt::format("say {}", fileno(stream)), LogLevel::warning,
             "{} cannot be written: {}; the work goes on without these words",
             stream == stderr ? "stderr" : "stdout", errno_words(failure));
}

void flush_results() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw std::system_error(errno != 0 ? errno : EIO, std::generic_category(),
                          "stdout cannot be written");
}

}  // namespace tutti
