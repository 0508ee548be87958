/// Gradients that are whole before their backward pass is over. Not for users.
///
/// Autograd cannot tell: another part of the graph may still add to a gradient. Where the loss
/// hangs on one node alone, which gives each parameter its gradient once, that node can, and an
/// update may begin while the pass goes on. Thread rule: that of the replica.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

namespace tutti::detail {

class GradientListener {
 public:
  virtual ~GradientListener() = default;

  /// `gradient` is whole, and unless it sends() nothing on this replica reads `parameter` any more
  /// in this pass. True: it was taken, and autograd is to get none. False: it goes the usual way.
  virtual bool take(const at::Tensor& parameter, const at::Tensor& gradient) = 0;

  /// Whether gradients go to others, and no parameter that the pass has read is written before it
  /// is over: then the sooner one comes the better.
  virtual bool sends() const { return false; }

  /// There is more of the pass to come: an update may be made now. Not at its end, where others may
  /// wait for this replica before they make theirs.
  virtual void go_on() = 0;
};

/// A node that gives each parameter its gradient once, and tells a listener as soon as one is
/// whole.
struct TellingNode : torch::autograd::Node {
  GradientListener* listener = nullptr;  ///< while a backward pass goes on; null: nobody listens
};

/// The node from which all gradients of `loss` come; null when there is none, or another source.
TellingNode* only_source_of(const at::Tensor& loss);

/// Has `listener`, which may be null, hear of the gradients of `loss`, where they have one source,
/// until this goes out of scope.
class Listening {
 public:
  Listening(const at::Tensor& loss, GradientListener* listener);
  ~Listening();
  Listening(const Listening&) = delete;

 private:
  TellingNode* source_ = nullptr;
};

}  // namespace tutti::detail
