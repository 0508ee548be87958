/// What a person sets in the environment, checked before work begins.
#pragma once

namespace tutti {

/// Reads TUTTI_CPU_VARIANT, TUTTI_TOKEN_FILE, TUTTI_TOKEN, TUTTI_TLS and TUTTI_INTERFACE as those
/// who need them will, whether this process will need them or not: what is set is meant, and a
/// mistake in it is best found on one host, before the job is on several. Throws UsageError that
/// names the variable. Every process of a job asks: the program, join() and Strategy. Thread rule:
/// any thread, while nobody changes the environment.
void check_environment();

}  // namespace tutti
