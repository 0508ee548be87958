/// Parameters that several stages of a pipeline read: their gradients go to the owner, its values
/// to the copies. Not for users.
///
/// Thread rule: one thread, that of the group.
#pragma once

#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tutti/parallel/stages/detail/channel.h"
#include "tutti/parallel/stages/detail/pipeline_agreement.h"
#include "tutti/parallel/stages/tree_accumulator.h"

namespace tutti::parallel::detail {

/// Of one microbatch the owner's gradient is the readers', from the last stage on, and then its
/// own, as autograd would add them. Readers may be late (W), and no schedule knows of ties: an
/// owner does not wait at its action, but makes these sums here, beside those of other parameters.
class TiedParameters {
 public:
  /// `all`: of the pipeline. Tags from `first_tag` on are used, two a tie.
  TiedParameters(const Group& group, const mesh::Schedule& schedule, const std::vector<TieEnd>& all,
                 const std::vector<Stage>& chunks, int first_tag, Millis limit);

  void open(std::span<const int64_t> sizes);
  /// Takes tied ones out of the gradients of a microbatch of `stage`: a reader's are sent.
  void pass(int stage, int microbatch, const std::vector<at::Tensor>& parameters,
            std::vector<at::Tensor>& gradients);
  /// An owner's, of a microbatch without samples.
  void pass_none(int stage, int microbatch);
  /// The end of a batch: waits for what readers still have to send, and until all that was sent is
  /// received. put_sums() comes then.
  void finish();
  /// Puts the sums of `stage` where they belong among its gradients.
  void put_sums(int stage, const std::vector<at::Tensor>& parameters,
                std::vector<at::Tensor>& sums);

  void send_values();

 private:
  /// An end here of a tie, or both.
  struct Link {
    TieEnd tie;
    at::Tensor owners, readers;  // undefined: on another rank
    Channel gradients, values;
  };
  struct Owned {
    int stage = 0;
    at::Tensor parameter;
    std::vector<size_t> links;                       // of its readers, from the last stage on
    std::deque<std::pair<int, at::Tensor>> waiting;  // own gradients, by microbatch
    TreeAccumulator sum;
  };
  void add_arrived(Owned& owned, bool wait);

  std::vector<Link> links_;
  std::vector<Owned> owned_;
  std::vector<int64_t> sizes_;
};

}  // namespace tutti::parallel::detail
