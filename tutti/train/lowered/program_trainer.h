/// ProgramTrainer: trains by a program of the user's own: a file of StableHLO, as JAX exports it.
///
///   ProgramTrainer trainer(client, "step.mlir", {w0, b0, w1, b1});
///   auto step = trainer.step({{x, y}});                     // starts it, and returns
///   double loss = step.figures(Deadline(limit))[0][0].as<float>()[0];
///   std::vector<Array> trained = trainer.state();
///
/// Its main() takes what is kept first, then what comes with each step; it gives what is kept anew
/// first, in the same order and of the same types, then the figures, which may be any. What is kept
/// stays on the devices between steps: one that main() gives away (JAX's donate_argnums) needs the
/// memory of one copy. docs/guide/tpu.md, "A program of your own".
/// Thread rule: one thread at a time.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/base/deadline.h"
#include "tutti/pjrt/client.h"

namespace tutti {

struct ProgramOptions {
  /// From 1 to the client's devices. Several: the program says by collectives of its own how they
  /// train together, and is text, for of bytecode it is not known here for how many it is.
  int replicas = 1;
  Millis limit{600'000};  ///< of compiling, of a step that begins, of the wait in state()
};

/// A step that may still be on its way.
class ProgramStep {
 public:
  /// What main() gives behind what is kept, of each replica. Timeout after the deadline names the
  /// devices that are not done; Error: what one said.
  std::vector<std::vector<Array>> figures(const Deadline& deadline) const;

 private:
  friend class ProgramTrainer;
  ProgramStep(pjrt::Results results, size_t num_kept)
      : results_(std::move(results)), num_kept_(num_kept) {}
  pjrt::Results results_;
  size_t num_kept_ = 0;
};

class ProgramTrainer {
 public:
  /// file   StableHLO as text, or as bytecode (a portable artifact)
  /// state  what every replica begins with: the first arguments of main(), at least one
  ///
  /// Errors name the file. DataError where it is not there, is empty, or is refused by the plugin,
  /// with its words; UsageError for a program whose results do not begin with the types of `state`,
  /// or whose arguments do not, as far as the plugin says them; for more replicas than devices.
  ProgramTrainer(pjrt::Client client, const std::filesystem::path& file,
                 const std::vector<Array>& state, ProgramOptions options = {});
  ~ProgramTrainer();
  ProgramTrainer(ProgramTrainer&&) noexcept;

  /// Starts a step: inputs[replica] are the arguments of main() behind what is kept. UsageError for
  /// other counts or, as far as the plugin says them, types; nothing has run then.
  ProgramStep step(const std::vector<std::vector<Array>>& inputs);

  /// What that replica keeps, when the steps that were started are done.
  std::vector<Array> state(int replica = 0) const;

  /// Has every replica keep that from here on. UsageError for other counts or types.
  void load(const std::vector<Array>& state);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
