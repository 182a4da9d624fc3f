#pragma once

#include <string>

#include "vlmtrain/report/inspection.h"

namespace vlmtrain::report {

/// The end of the page's title, after the name of the data set.
inline constexpr const char* kInspectionTitle = ": what is trained on</title>";

/// Returns the inspection as one HTML file without external resources and scripts, including the
/// media of the previewed samples.
std::string render_inspection_page(const Inspection& inspection);

}  // namespace vlmtrain::report
