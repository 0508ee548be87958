/// Quick, Draw! as strokes: ndjson (simplified, or raw with times), Google's binary, Kaggle's CSV.
///
///   strokes("quickdraw/simplified")
///       .map(transforms::strokes_to_bitmap(64))  // or strokes_to_sequence(100)
///       .map(transforms::to_tensor())
///
/// docs/formats/strokes.md describes the files. Thread rule: functions of their arguments.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"
#include "tutti/data/stroke_field.h"

namespace tutti::data {

struct StrokesOptions {
  /// The classes by label, each once; empty: those that are there, sorted by bytes. Some may have
  /// no drawing.
  /// kaggle_classes() has those of the challenge.
  std::vector<std::string> classes = {};
  bool labelled = true;  ///< false: no y, and no word need be there: what is to be predicted
  bool details = false;  ///< columns key_id, countrycode, recognized and timestamp, too
  /// Files of so many bytes together, or fewer, are read once and kept in memory; of larger ones a
  /// drawing is read when it is asked for, and one that has changed meanwhile is refused.
  int64_t keep_bytes = 64 << 20;
  FilesHandle files = local_files();
};

/// Opens a file of drawings, or a folder of files of one kind (.ndjson, .bin or .csv).
///
/// Samples are strokes float32 [?, 4] and y int64 []; `details` puts key_id int64 [], countrycode
/// uint8 [2], recognized bool [] and timestamp int64 [] (Unix seconds, fraction dropped) between
/// them; a test file of Kaggle's, which has neither, has recognized true and timestamp 0. A row of
/// strokes is a point: x, y, time and the number of its stroke, from 0 on. The time of raw drawings
/// is in milliseconds since the first point, at most 1e9; the others have none, and the number of
/// the point in the drawing stands in for it. The class is the word of a line, of binary files the
/// file's name.
///
/// Lines and records are found, and classes numbered, before this returns; a drawing is parsed when
/// it is read. Throws
///   DataError   nothing there; a binary file cut off; a line or record of more than 64 MiB; a
///               header without a field; a class that is none of `classes`; no word in any line:
///               file and line, what was got, what was expected
///   UsageError  a folder of several kinds; `classes` with one twice or without a name; negative
///               `keep_bytes`
/// and, when a sample is read, DataError for what is no JSON, a stroke of one point or of unequal
/// lengths, a simplified point outside 0..255, a raw one that is no number, times that run back or
/// beyond 1e9 ms, a country that is no code, a word that is not there or "": file, line, stroke and
/// point.
Dataset strokes(const std::filesystem::path& path, StrokesOptions options = {});

/// Whether all that strokes() would read there says what was to be drawn: false of a file of
/// Kaggle's without the column `word`. Of files no more than the first line is read. Throws as
/// strokes() does for what is no such file or folder, and for a header without a field.
bool strokes_are_labelled(const std::filesystem::path& path,
                          const FilesHandle& files = local_files());

/// What is to be predicted, and what a submission names it by: of one opening, so that a key and
/// its drawing are of the same bytes.
struct KeyedStrokes {
  Dataset drawings;                           ///< as strokes() has them without labels
  std::vector<int64_t> keys;                  ///< the key_id of each, 0 to 2^63 - 1, in their order
  std::function<std::string(int64_t)> where;  ///< "kaggle/test.csv, line 18": of a row
};

/// Opens as strokes() does, `labelled` false, and reads each drawing once, on all cores. Throws as
/// that; DataError, the first in their order, for a drawing that is damaged or has no key_id;
/// Interrupted where an end was asked for (stop.h).
KeyedStrokes keyed_strokes(const std::filesystem::path& path, StrokesOptions options = {});

/// The 340 classes of Kaggle's Quick, Draw! Doodle Recognition Challenge, sorted by bytes.
const std::vector<std::string>& kaggle_classes();

}  // namespace tutti::data
