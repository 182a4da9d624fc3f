#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "vlmtrain/base/regex.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// A finder of boxes and points in the texts of turns (data.boxes.in and data.boxes.pattern).
/// Immutable and thread-safe.
class BoxTextFinder {
 public:
  /// Throws UserError (kUsage) for a pattern that is no regular expression or does not have two or
  /// four groups, and for a pattern without a unit.
  explicit BoxTextFinder(const BoxSettings& settings);

  std::optional<CoordinateUnit> unit() const { return unit_; }

  /// Appends the boxes and points in the texts of `record` to Record::objects. Each belongs to the
  /// last image before it, else to the first image. Finds none without a unit or in a record without
  /// media. Throws UserError (kBadData) for coordinates of a video, for coordinates in tool calls and
  /// reasoning, which are not rewritten, and for a search that takes too long.
  void add_objects(Record& record) const;

 private:
  std::optional<CoordinateUnit> unit_;
  std::optional<Regex> pattern_;
  /// Number of the group of x1, y1, x2 and y2, or of x and y.
  std::vector<size_t> groups_;
};

/// Marks of ms-swift's format in the texts of turns: each stands for the next box, and for the next
/// name, of a record's "objects".
inline constexpr std::string_view kBoxMark = "<bbox>";
inline constexpr std::string_view kNameMark = "<ref-object>";

/// Sets Record::objects from the boxes and names of `record_json` whose marks are in the turns, and
/// from coordinates in texts if `boxes` searches them. The boxes are under "objects" (ms-swift:
/// {"ref": names, "bbox": boxes, "bbox_type": unit, "image_id": image of each box}), or a list under
/// "bbox", "bboxes" or "boxes". Does not read them if no turn has a mark. REQUIRES: turns and images
/// of `record` are set. Throws UserError (kBadData) for invalid values, and for other numbers of
/// boxes or names than marks.
void set_object_marks(const RecordJson& record_json, const BoxTextFinder& boxes, Record& record);

}  // namespace vlmtrain::io
