#include <optional>
#include <vector>

#include "app/commands/commands.h"
#include "app/plan_samples/plan_request.h"
#include "app/process/output.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/planner/savings_table.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/report/plan_timeline.h"
#include "vlmtrain/train/past_runs.h"

namespace vlmtrain::app {

namespace {

/// Prints the plan, the table of --compare and the measurements of past runs on stdout, as text or
/// JSON.
void print_plan(const planner::Plan& plan, const std::vector<planner::SavingsRow>& savings_table,
                const std::optional<train::PastRunMeasurements>& past_runs, const PlanArguments& arguments) {
  if (arguments.json) {
    auto json = plan.to_json();
    json["past_runs"] = past_runs ? past_runs->to_json() : nlohmann::ordered_json();
    if (arguments.compare) json["compare"] = planner::make_savings_json(savings_table);
    fmt::print("{}\n", io::to_json_string(json));
    return;
  }
  fmt::print("{}", report::format_plan(plan, detect_stdout_style()));
  if (arguments.compare) fmt::print("{}", report::format_savings_table(savings_table, detect_stdout_style()));
  if (past_runs)
    fmt::print("\n{}", report::format_remark("Measured: " + past_runs->describe() + ".", detect_stdout_style()));
}

}  // namespace

ExitCode plan(const PlanArguments& arguments) {
  init_logging(/*quiet=*/false);
  // The signature is the end of the title that report::render_plan_timeline() writes.
  check_can_overwrite({"--timeline", arguments.timeline, "a timeline of plan", ": memory of a step</title>"});
  PlanInput input = make_plan_input(arguments);
  planner::PlanRequest& request = input.request;
  const auto past_runs =
      train::load_past_runs(train::find_past_runs_file(), train::get_gpu_run_environment(request.gpu().device_name));
  // Measured memory outside of the allocator affects whether a plan fits, so it is set before.
  // Measured times only scale the result, so they are applied after.
  if (past_runs) train::calibrate_with_past_runs(request.gpu(), *past_runs);
  planner::Plan plan = input.model.name_in_errors([&] { return planner::make_plan(request); });
  std::vector<planner::SavingsRow> savings_table;
  if (arguments.compare)
    savings_table = input.model.name_in_errors([&] { return planner::make_savings_table(request, plan); });
  if (past_runs) {
    train::calibrate_with_past_runs(plan, *past_runs);
    train::calibrate_with_past_runs(savings_table, *past_runs);
  }
  if (!arguments.timeline.empty()) io::write_file(arguments.timeline, report::render_plan_timeline(plan));
  print_plan(plan, savings_table, past_runs, arguments);
  return plan.fits ? ExitCode::kSuccess : ExitCode::kDoesNotFit;
}

}  // namespace vlmtrain::app
