#include <optional>
#include <vector>

#include "app/commands.h"
#include "app/output_file.h"
#include "app/planned.h"
#include "app/terminal_style.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/planner/ladder.h"
#include "vlmtrain/report/ladder_text.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/report/plan_timeline.h"
#include "vlmtrain/train/past_runs.h"

namespace vlmtrain::app {

namespace {

void print(const planner::Plan& plan, const std::vector<planner::Rung>& ladder,
           const std::optional<train::PastRuns>& past, const PlanArguments& arguments) {
  if (arguments.json) {
    auto json = plan.to_json();
    json["past_runs"] = past ? past->to_json() : nlohmann::ordered_json();
    if (arguments.compare) json["compare"] = planner::ladder_json(ladder);
    fmt::print("{}\n", io::json_text(json));
    return;
  }
  fmt::print("{}", report::plan_text(plan, style_of_stdout()));
  if (arguments.compare) fmt::print("{}", report::ladder_text(ladder, style_of_stdout()));
  if (past) fmt::print("\n{}", report::remark_text("Measured: " + past->words() + ".", style_of_stdout()));
}

}  // namespace

ExitCode plan(const PlanArguments& arguments) {
  start_log(/*quiet=*/false);
  refuse_to_overwrite({"--timeline", arguments.timeline, "a timeline of plan", ": memory of a step</title>"});
  bool fits = false;
  with_plan_request(arguments, [&](const planner::PlanRequest& asked) {
    planner::PlanRequest request = asked;
    const auto past = train::past_runs(train::past_runs_file(), train::place_of_card(request.card.device_name));
    if (past) train::learn(request.card, *past);
    planner::Plan plan = planner::make_plan(request);
    auto ladder = arguments.compare ? planner::compare_ladder(request, plan) : std::vector<planner::Rung>{};
    if (past) {
      train::learn(plan, *past);
      train::learn(ladder, *past);
    }
    if (!arguments.timeline.empty()) io::write_file(arguments.timeline, report::plan_timeline_html(plan));
    print(plan, ladder, past, arguments);
    fits = plan.fits;
  });
  return fits ? ExitCode::kDone : ExitCode::kDoesNotFit;
}

}  // namespace vlmtrain::app
