/// What Model::load() leaves out, and says of it. Without LibTorch. Thread rule: values.
#pragma once

#include <string>
#include <vector>

namespace tutti {

struct LoadOptions {
  /// Tensors that stay as they are, in each replica, whatever the file has of them: names (* any
  /// characters, ? any one), or names of modules, all of whose tensors they mean: "fc", "fc.*",
  /// "*.bias". One that fits none, of the model or the file, is a UsageError. Adapters (nn::lora)
  /// are no tensors of a whole network's file: to load one sets what they add to 0, all of it.
  std::vector<std::string> skip{};
  /// False: what one side alone has is left out, too, as load_state_dict(strict=False) of PyTorch;
  /// shapes and dtypes must be the same all the same.
  bool strict = true;
};

/// Names, in the order of model and file.
struct LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> skipped;     ///< by LoadOptions::skip, of the model or of the file
  std::vector<std::string> missing;     ///< in the file: they stay as they are (strict = false)
  std::vector<std::string> unexpected;  ///< of the file, which the model has not (strict = false)

  /// "60 tensors; skipped fc.weight, fc.bias; not in the file ..., not in the model ...".
  std::string to_string() const;
};

}  // namespace tutti
