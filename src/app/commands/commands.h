#pragma once

#include "app/settings/arguments.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

// Each function runs the command of its name with parsed arguments, prints the result on stdout and
// returns the exit code. Throws UserError. A function may execute the program again in this process
// (app/settings/process_setup.h), so it is called once, before other threads start.
ExitCode train(const TrainArguments& arguments);
ExitCode init(const InitArguments& arguments);
ExitCode doctor(const DoctorArguments& arguments);
ExitCode eval(const EvalArguments& arguments);
ExitCode inspect(const InspectArguments& arguments);
ExitCode generate(const GenerateArguments& arguments);
ExitCode merge(const MergeArguments& arguments);
ExitCode download(const DownloadArguments& arguments);
ExitCode plan(const PlanArguments& arguments);
ExitCode report(const ReportArguments& arguments);
/// Serves the planner's dry runs: requests on stdin, answers on stdout (planner/backend.h).
/// Throws UserError (kUsage) outside of a virtual GPU.
ExitCode dry_run();

}  // namespace vlmtrain::app
