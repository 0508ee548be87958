// Photos made by the tests: encoded here, so that every kind of sampling and damage can be had.
#pragma once

#include <jpeglib.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tutti/base/random.h"
#include "tutti/data/sample.h"
#include "tutti/data/transform.h"

namespace tutti::data {

struct JpegKind {
  const char* name = "4:2:0";
  int horizontal = 2, vertical = 2;  // brightness samples for each of colour
  bool progressive = false;
  int restart_rows = 0;
  J_COLOR_SPACE space = JCS_RGB;
};

inline int components_of(J_COLOR_SPACE space) {
  return space == JCS_RGB ? 3 : space == JCS_GRAYSCALE ? 1 : 4;
}

// Colours that change from pixel to pixel: what mixes neighbours up shows.
inline std::vector<uint8_t> colourful(int height, int width, int components) {
  RandomStream random(static_cast<uint64_t>(height * 10000 + width));
  std::vector<uint8_t> pixels;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < components; ++c)
        pixels.push_back(static_cast<uint8_t>((c * 90 + x * 3 + y * 5 + random.below(90)) % 256));
  return pixels;
}

inline std::string make_jpeg(int height, int width, const JpegKind& kind,
                             std::vector<uint8_t> pixels) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = components_of(kind.space);
  info.in_color_space = kind.space;
  jpeg_set_defaults(&info);
  if (kind.space == JCS_CMYK) jpeg_set_colorspace(&info, JCS_YCCK);
  jpeg_set_quality(&info, 85, TRUE);
  if (kind.space != JCS_GRAYSCALE) {
    info.comp_info[0].h_samp_factor = kind.horizontal;
    info.comp_info[0].v_samp_factor = kind.vertical;
  }
  info.restart_in_rows = kind.restart_rows;
  if (kind.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = pixels.data() + info.next_scanline * pixels.size() / info.image_height;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string result(reinterpret_cast<const char*>(bytes), size);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return result;
}

inline std::string make_jpeg(int height, int width, const JpegKind& kind = {}) {
  return make_jpeg(height, width, kind, colourful(height, width, components_of(kind.space)));
}

inline std::vector<JpegKind> jpeg_kinds() {
  return {{"4:4:4", 1, 1},
          {"4:2:2", 2, 1},
          {"4:2:0"},
          {"4:4:0", 1, 2},
          {"4:1:1", 4, 1},
          {"4:1:0", 4, 2},
          {"progressive 4:2:0", 2, 2, true},
          {"progressive 4:4:4", 1, 1, true},
          {"restarts", 2, 2, false, 1},
          {"gray", 1, 1, false, 0, JCS_GRAYSCALE},
          {"ycck", 1, 1, false, 0, JCS_CMYK},
          {"ycck 4:2:0", 2, 2, false, 0, JCS_CMYK}};
}

// What a transform makes of column 0.
inline Array applied(const TransformHandle& transform, const Array& in, uint64_t key = 1) {
  Draw draw(key);
  return transform->apply(Sample{{in}}, draw).columns.at(0);
}

inline std::string bytes_in(const Array& array) {
  return {static_cast<const char*>(array.data()), static_cast<size_t>(array.num_bytes())};
}

// An image whose bytes are all different from their neighbours.
inline Array image_of(int64_t channels, int64_t height, int64_t width, uint64_t key = 7) {
  Array image = make_array(DType::uint8, {channels, height, width});
  RandomStream random(key);
  for (uint8_t& value : image.as<uint8_t>()) value = static_cast<uint8_t>(random.below(256));
  return image;
}

}  // namespace tutti::data
