#pragma once

#include <string>

#include "vlmtrain/report/inspection.h"
#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::report {

/// What there is to say of the data in a sentence, without line break: "3,064 samples, all of which can be used".
std::string format_inspection_headline(const Inspection& inspection);

/// An inspection for people: of lists the first few entries. Ends with a line break.
std::string format_inspection(const Inspection& inspection, const TextStyle& style);

}  // namespace vlmtrain::report
