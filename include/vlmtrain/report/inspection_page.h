#pragma once

#include <string>

#include "vlmtrain/report/inspection.h"

namespace vlmtrain::report {

/// The title of such a page ends with this, behind the data set's name.
inline constexpr const char* kInspectionTitle = ": what is trained on</title>";

/// One HTML file without anything to load from elsewhere and without scripts: the whole of an inspection, with the
/// pictures of the samples that are shown.
std::string render_inspection_page(const Inspection& inspection);

}  // namespace vlmtrain::report
