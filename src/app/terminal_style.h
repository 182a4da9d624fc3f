#pragma once

#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::app {

/// How stdout can show text: colour on a terminal unless NO_COLOR is set (no-color.org) or TERM is dumb, block
/// characters where the locale is UTF-8, the terminal's width.
report::TextStyle detect_stdout_style();

}  // namespace vlmtrain::app
