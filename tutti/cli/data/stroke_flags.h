/// What becomes of drawings of strokes on the command line: bitmaps, unless --strokes names another
/// transform. Without LibTorch. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::cli {

struct Command;

/// --strokes TRANSFORM, --classes NAME.
void add_stroke_flags(Command& command, std::string& transform, std::string& classes);

/// The classes that --classes names: "kaggle", the 340 of the challenge; "": none.
std::vector<std::string> stroke_classes(const std::string& typed);

/// Names of transforms, in order: the one typed, or strokes_to_bitmap of `image_size` (0: 28, as
/// the models of doodles take); of bytes to_tensor() behind it. Throws UsageError, with the flag,
/// for a transform that there is not, that takes no strokes, draws, makes two columns or samples of
/// any size, and for both flags.
std::vector<std::string> stroke_transforms(const std::string& typed, int64_t image_size);

}  // namespace tutti::cli
