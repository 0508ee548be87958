/// Transforms of whole batches: mixup and cutmix; names and meaning are torchvision's.
///
///   data.batch(64).map(transforms::mixup(10))
///
/// Row i is mixed with row i xor 1: the order is random already. The label, the last column, int64
/// [] in [0, num_classes), becomes float32 [num_classes]: the shares of the classes; the last row
/// of an odd batch stays as it is, one-hot. columns() throws UsageError for other columns, apply()
/// DataError for a label out of range. Thread rule: immutable.
#pragma once

#include <cstdint>
#include <string_view>

#include "tutti/data/batch_transform.h"

namespace tutti::data::transforms {

/// Column 0, float32 of fixed shape, and the labels become lambda times a row plus 1 - lambda times
/// its partner, with one lambda of Beta(alpha, alpha), alpha > 0, a batch.
/// Zhang et al. 2018, arXiv:1710.09412
BatchTransformHandle mixup(int64_t num_classes, double alpha = 1);

/// Column 0, uint8 or float32 [C, H, W] of fixed shape, gets a rectangle of its partner, one a
/// batch; labels are mixed by area. Yun et al. 2019, doi:10.1109/ICCV.2019.00612
BatchTransformHandle cutmix(int64_t num_classes, double alpha = 1);

/// "mixup(10)", "cutmix(10, alpha 0.2)". Throws UsageError as by_name().
BatchTransformHandle batch_by_name(std::string_view name);

}  // namespace tutti::data::transforms
