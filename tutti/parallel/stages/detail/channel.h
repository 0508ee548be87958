/// One direction between two stages of a pipeline, first in, first out: messages where they lie on
/// two ranks, a queue where they lie on one. Not for users.
///
/// Thread rule: one thread, that of the group.
#pragma once

#include <torch/types.h>

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tutti/comm/group/group.h"
#include "tutti/parallel/stages/stage.h"

namespace tutti::parallel::detail {

constexpr int64_t kMostDims = 15;  ///< of a tensor that is sent

/// What one action leaves to another.
struct Parcel {
  std::vector<at::Tensor> tensors{};  ///< an undefined one arrives as such
  int64_t calls = 0;                  ///< SampleContext::next_call() so far, by the stages before
};

/// As others see it: without gaps between its elements (itself, where it has none), since what a
/// kernel does may depend on the strides. Not part of a graph.
at::Tensor packed(const at::Tensor& tensor);

/// "stage 2 (rank 0)".
std::string name_of_stage(int stage, int rank);

/// Carries `action` out; what of a group's errors it throws begins with `words()` then.
void with_words(const std::function<std::string()>& words, const std::function<void()>& action);

class Channel {
 public:
  struct End {
    int stage = 0;
    int rank = 0;
  };
  struct Content {
    std::string what;             ///< for messages: "F"
    End from, to;                 ///< this rank is one of them, or both
    int tag = 0;                  ///< of this channel alone
    std::vector<Border> tensors;  ///< in each parcel
    bool by_sample = true;        ///< they have a row for each sample of the microbatch
  };
  /// `limit`: of each wait.
  Channel(Group group, Content content, Millis limit);

  /// A batch of microbatches of so many samples begins. The first receives are posted.
  void open(std::span<const int64_t> sizes);

  /// On the sender: in order of the microbatches that have samples. Does not wait; the tensors
  /// must not be written to afterwards.
  void put(int microbatch, Parcel parcel);
  /// On the receiver, in the same order: waits until the parcel is there.
  Parcel take(int microbatch);
  /// On the receiver: whether take() would not wait.
  bool arrived();

  /// On the sender: waits until all that was put is received.
  void finish();

 private:
  struct Transfer {
    int microbatch = 0;
    std::vector<int64_t> header;      // calls, then the order of each tensor's dimensions
    std::vector<at::Tensor> tensors;  // contiguous
    std::vector<Work> works;
  };
  bool local() const noexcept { return content_.from.rank == content_.to.rank; }
  std::vector<int64_t> shape_of(size_t tensor, int microbatch) const;
  bool sends() const noexcept { return group_.rank() == content_.from.rank; }
  void post_next();
  bool is_done(Transfer& transfer);
  void wait(Transfer& transfer);
  /// Carries `action` out; errors say who did what: "stage 2 (rank 2) waited for F of ...".
  void named(std::string_view verb, const Transfer& transfer, const std::function<void()>& action);

  Group group_;
  Content content_;
  Millis limit_;
  std::vector<int64_t> sizes_;
  int next_ = 0;                 // microbatch to post a receive for
  std::deque<Transfer> in_air_;  // sent, or to be received
  std::deque<Parcel> here_;      // local
};

}  // namespace tutti::parallel::detail
