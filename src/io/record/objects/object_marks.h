#pragma once

#include <string_view>

#include "io/record/objects/box_text.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

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
