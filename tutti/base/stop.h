/// The wish to end in order: SIGINT and SIGTERM become a flag that loops look at between steps.
///
/// A program that trains calls install_stop_handler() once and looks at stop_requested() after each
/// step. A second signal ends the process at once with 128+signal, whatever it is doing.
/// Thread rule: every function may be called from any thread.
#pragma once

namespace tutti {

/// Takes over SIGINT and SIGTERM. Idempotent. A signal that is ignored (nohup) stays ignored.
void install_stop_handler();

/// The signal that asked for an end, or 0.
int stop_requested() noexcept;

/// Throws Interrupted, which names the signal and `where`, when an end was asked for.
void throw_if_stop_requested(const char* where);

/// Gives the signals back to what handled them before, and clears the flag.
void remove_stop_handler();

}  // namespace tutti
