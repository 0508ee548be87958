/// What the tests ask of, and tell, the CUDA and NCCL of their own.
///
/// Both carry operations out between threads, one a rank, so results can be compared. They note
/// every break of the rules: an operation outside a group, on a communicator that is still in
/// progress, aborted or destroyed; an event recorded before the kernels are on the stream; a
/// configuration that was not initialised or blocks; an end without finalize; what was never freed.
/// Thread rule: every function may be called from any thread.
#pragma once

#include <string>
#include <vector>

#include "tests/unit/nccl/fake/nccl.h"

namespace tutti::test {

struct FakeRules {
  int polls_until_ready = 3;  ///< how often a communicator says ncclInProgress after each call
  bool never_ready = false;   ///< it says so for ever
  bool hang = false;          ///< operations are taken and never done
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
