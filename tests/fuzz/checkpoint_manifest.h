/// What a checkpoint's files say, as functions of bytes, for net_parsers.cpp.
#pragma once

#include <string_view>

namespace tutti::test {

/// manifest.json: as it is, and with a digest that is right.
void checkpoint_manifest(std::string_view bytes);
/// A safetensors file, taken as all tensors of a checkpoint.
void checkpoint_state(std::string_view bytes);

}  // namespace tutti::test
