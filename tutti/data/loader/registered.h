/// Registered: a dataset that another process of the same program can make, by name.
///
/// Loader processes (WorkerKind::processes) are this program again, started anew: they cannot be
/// given a lambda, but know what is registered before main():
///
///   const tutti::data::Registered photos("photos", [](const std::string& folder) {
///     return tutti::data::image_folder(folder).map(slow_and_not_thread_safe);
///   });
///   int main(int argc, char** argv) {
///     auto strategy = tutti::strategy_from_flags(argc, argv);   // a loader process ends here
///     auto train = photos("photos/train").shuffle().batch(64);
///
/// What reads and maps samples has to be inside of the function; views, batches and maps of batches
/// may follow. filter() and its kin look at samples when they are called, in the process that calls
/// them: here one after another, not on all cores. Thread rule: objects at namespace scope; calls
/// from any thread.
#pragma once

#include <functional>
#include <string>

#include "tutti/data/dataset.h"

namespace tutti::data {

class Registered {
 public:
  using Make = std::function<Dataset(const std::string& arguments)>;

  /// Throws UsageError for a name that is taken.
  Registered(std::string name, Make make);

  /// The dataset of these arguments. The same arguments make the same dataset in every process.
  Dataset operator()(const std::string& arguments = "") const;

 private:
  std::string name_;
};

/// Where this process was started as a loader's: serves it, and ends. Strategy and
/// strategy_from_flags call it; a program that makes its Loader by hand does, first in main().
void serve_if_loader();

}  // namespace tutti::data
