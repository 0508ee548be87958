/// What tests ask of, and tell, the NCCL of their own and the CUDA runtime beneath it.
///
/// Between the threads of one process, a rank each. Kernels, copies and events are tasks in the
/// queues of the fake CUDA (tests/support/fake_cuda/queues.h), in its order of work: a kernel runs
/// once the queues of all its ranks have come to theirs. So a wait that is missing gives old values
/// or NaN in some order. Every break of the rules is noted: an operation outside a group, on a
/// communicator that is still in progress, aborted or destroyed; an event recorded before the
/// kernels are on the stream; a configuration that was not initialised or blocks; an end without
/// finalize; what was never freed. Thread rule: every function may be called from any thread.
#pragma once

#include <string>
#include <vector>

#include "tests/support/fake_nccl/nccl.h"

namespace tutti::test {

struct FakeRules {
  int polls_until_ready = 3;  ///< how often a communicator says ncclInProgress after each call
  bool never_ready = false;   ///< it says so for ever
  bool hang = false;          ///< operations are taken and never done
  int version = 22800;        ///< as ncclGetVersion() says it
};

/// Forgets all, and sets the rules.
void reset_fakes(const FakeRules& rules = {});
void set_fake_rules(const FakeRules& rules);
/// Every live communicator's state from now on.
void set_fake_state(ncclResult_t state);
/// The calls of NCCL and of streams so far, in order: "ncclGroupStart", "wait event", ...
std::vector<std::string> fake_calls();
/// Broken rules, and objects that were not given back; empty when all is well.
std::vector<std::string> fake_complaints();

}  // namespace tutti::test
