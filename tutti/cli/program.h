/// The program `tutti` as a function, for main() and for tests of what it answers.
/// Thread rule: the main thread alone.
#pragma once

namespace tutti::cli {

/// Carries out the command of `argv` (the program's name first), prints results to stdout and words
/// about the work to stderr, and returns the exit code: 0 done, 1 the run failed, 2 wrong usage or
/// bad input, 128+signal. An error is printed as `tutti NAME: message`, never thrown.
int run_program(int argc, const char* const* argv);

}  // namespace tutti::cli
