/// Losses by what output and target share: Dice and Tversky of masks, CTC of sequences of labels.
///
/// Rules, dtypes and errors are those of losses.h; e is 1e-7.
/// Thread rule: pure functions.
#pragma once

#include "tutti/train/losses/losses.h"

namespace tutti::losses {

/// Losses by how much output and target overlap, summed over all that a sample has.
struct DiceOptions {
  bool from_logits = true;  ///< true: p = sigmoid(y); false: p = y, of 0 to 1
  bool softmax = false;     ///< of logits over the last axis, the classes, in place of the sigmoid
  double smooth = 0;        ///< finite, >= 0: added to numerator and denominator
};

/// Salehi et al. 2017, arXiv:1706.05721. Both 0.5: Dice.
struct TverskyOptions {
  bool from_logits = true;  ///< this and the next as in DiceOptions
  bool softmax = false;
  double alpha = 0.5;  ///< finite, >= 0: how much false positives count (Keras 3.15: its beta)
  double beta = 0.5;   ///< finite, >= 0: how much false negatives count (Keras 3.15: its alpha)
  double smooth = 0;
};

/// Graves et al. 2006, doi:10.1145/1143844.1143891.
struct CtcOptions {
  bool from_logits = true;  ///< false: y are probabilities, as in CrossentropyOptions
  int64_t blank = 0;        ///< 0 to classes - 1: no label; labels are padded with it at their end
};

/// 1 - (2 sum(t p) + smooth) / (sum(t) + sum(p) + smooth + e), sums over all elements of a sample:
/// as Keras's dice with axis=(1, 2, ...). Over the whole batch, its default, it is no mean over
/// samples, and would depend on how the batch is cut.
Loss dice(const DiceOptions& options = {});

/// 1 - (i + smooth) / (i + alpha sum((1 - t) p) + beta sum(t (1 - p)) + smooth + e), i = sum(t p);
/// sums as of dice().
Loss tversky(const TverskyOptions& options = {});

/// -log of the probability of all ways in which y, [batch, steps, classes], says the labels t,
/// integers [batch, most labels]: repeats are one, blanks fall out. All steps count. Named "ctc".
/// DataError that names the row for a label out of range or behind padding, and where the steps are
/// too few (one a label, and one more between equal ones). The mean is over samples, as in Keras;
/// PyTorch's divides each by its labels. On devices labels come to the host in each step, which
/// waits; compile() refuses it there with step_graph and with deterministic algorithms.
Loss ctc(const CtcOptions& options = {});

}  // namespace tutti::losses
