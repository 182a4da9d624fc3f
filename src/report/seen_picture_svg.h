#pragma once

#include <string>
#include <vector>

#include "vlmtrain/models/seen_picture.h"

namespace vlmtrain::report {

/// Pictures of a sample for a page, pixel for pixel and with lines between their tiles; of a video at most so many
/// frames, spread over it.
std::string render_media_previews(const std::vector<models::MediaPreview>& previews);

}  // namespace vlmtrain::report
