/// What tutti's photos are held against: threads that decode, crop, resize, flip and normalise, and
/// do nothing else: no files, no order, no batches that somebody takes.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tutti::bench {

inline constexpr int64_t kPhotoSide = 224;
inline constexpr double kPhotoMean[] = {0.485, 0.456, 0.406};
inline constexpr double kPhotoStd[] = {0.229, 0.224, 0.225};

/// `threads` threads make `samples` images out of JPEGs in memory, taken in turn. Ends the program,
/// with libjpeg's words, where one is damaged.
void make_bare_photos(std::span<const std::string> jpegs, int64_t samples, int threads);

}  // namespace tutti::bench
