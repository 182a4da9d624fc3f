#include "vlmtrain/report/plan_timeline.h"

namespace vlmtrain::report {

std::string plan_timeline_html(const planner::Plan& /*plan*/) {
  return {};
}

}  // namespace vlmtrain::report
