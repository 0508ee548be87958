/// PNG files in memory, by zlib.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tutti::detail {

/// 8 bits a channel, rows from the top: 1 channel grey, 2 grey and alpha, 3 RGB, 4 RGBA.
/// Throws UsageError when sizes and pixels do not fit.
std::string png_of(int height, int width, int channels, std::span<const uint8_t> pixels);

}  // namespace tutti::detail
