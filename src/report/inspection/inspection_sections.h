#pragma once

#include <string>
#include <vector>

#include "report/format/sections.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/report/inspection.h"

namespace vlmtrain::report {

/// Returns the content of the inspection, for terminals and pages.
std::vector<Section> make_inspection_sections(const Inspection& inspection);

/// Returns the media of a sample as HTML, pixel by pixel, with lines between tiles. At most 16
/// frames of a video or series are shown, evenly spaced.
std::string render_media_previews(const std::vector<models::MediaPreview>& previews);

}  // namespace vlmtrain::report
