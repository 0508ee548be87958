/// Where the parts of a parameter server's piece lie in a storage of parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tutti/ps/spec/spec.h"
#include "tutti/ps/wire/message.h"
#include "tutti/sync/slots.h"

namespace tutti::detail {

/// In bytes from the begin of the storage.
inline int64_t offset_of(const Slots& layout, const ps::Piece& piece, const ps::Segment& segment) {
  return layout.slots[segment.variable].offset_bytes + segment.begin * size_of(piece.dtype);
}

/// Copies the values of a piece to its places.
inline void spread(const Slots& layout, const ps::Piece& piece, const ps::Bytes& values,
                   std::byte* storage) {
  for (const ps::Segment& segment : piece.segments)
    std::memcpy(storage + offset_of(layout, piece, segment),
                values.span.data() + segment.offset_bytes, segment.count() * size_of(piece.dtype));
}

}  // namespace tutti::detail
