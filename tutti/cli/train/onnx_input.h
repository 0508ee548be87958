/// What becomes of a file's values before they go into a network, and of what it gives, as part of
/// a program of ONNX: by data.json (tutti/cli/data/spec.h). Without LibTorch.
/// Thread rule: that of the program.
#pragma once

#include <string>

#include "tutti/cli/data/spec.h"
#include "tutti/onnx/program.h"

namespace tutti::cli {

struct OnnxInput {
  onnx::Value value;  ///< as the network takes it
  onnx::Type type;    ///< of the program's input
  std::string words;  ///< for people: "decoded photos, RGB, of any size"
};

/// Adds the input, called `name`, and what is done to it:
///
///   photos    uint8 [batch, 3, height, width], decoded, in RGB: resized and cropped, normalised
///   doodles   uint8 [batch, 1, 28, 28], and IDX images: divided by 255
///   tables    float64 [batch, columns]: (value - mean) / deviation
///   text      int64 [batch, context]: numbers of characters, as they are
///
/// UsageError that names what ONNX cannot say, with --as-is, which leaves all of it out.
OnnxInput add_prepared_input(onnx::Program& program, const std::string& name, const DataSpec& spec);

/// Where a number is predicted: in its own unit, from what the network gives.
onnx::Value in_own_unit(onnx::Program& program, const onnx::Value& output, const DataSpec& spec);

}  // namespace tutti::cli
