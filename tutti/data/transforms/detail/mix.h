/// What mixup and cutmix do, with everything drawn already.
#pragma once

#include "tutti/data/transforms/detail/image.h"

namespace tutti::data::detail {

/// Where a rectangle of cutmix lies whose area is 1 - lambda of the image, but for what hangs over
/// the edge: around (y, x).
Box cut_box(int64_t height, int64_t width, double lambda, int64_t y, int64_t x);

/// own * share + partner * (1 - share) of float32.
Array mixed(const Array& own, const Array& partner, double share);

/// `own` with that rectangle of `partner`.
Array cut(const Array& own, const Array& partner, const Box& box);

}  // namespace tutti::data::detail
