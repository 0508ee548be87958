/// Files of torch.export, as functions of bytes, for net_parsers.cpp.
#pragma once

#include <string_view>

namespace tutti::test {

/// A .pt2 file as a whole.
void pt2_archive(std::string_view bytes);
/// models/model.json of a file that is sound otherwise: every checksum is right.
void pt2_program(std::string_view bytes);
/// The table of its weights.
void pt2_weights(std::string_view bytes);

}  // namespace tutti::test
