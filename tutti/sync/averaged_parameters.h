/// AveragedParameters: of an Updater whose replicas have parameters of their own, which differ from
/// one averaging to the next.
///
/// Thread rule: between runs, one thread a process; all but last() collective over workers.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace tutti {

class AveragedParameters {
 public:
  /// Averages now, and takes the outer step, unless that is what the last update did.
  virtual void average() = 0;
  /// Until hide() parameters of all replicas are their mean: for who reads them and changes
  /// nothing.
  virtual void show() = 0;
  virtual void hide() = 0;
  /// Those of the last averaging, by name: the same on all replicas.
  virtual std::vector<std::pair<std::string, at::Tensor>> last() const = 0;

 protected:
  ~AveragedParameters() = default;
};

}  // namespace tutti
