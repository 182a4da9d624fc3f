#pragma once

#include "app/arguments/arguments.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

// Each runs a command with parsed arguments and returns its exit code. Throws UserError.
ExitCode train(const TrainArguments& arguments);
ExitCode init(const InitArguments& arguments);
ExitCode doctor(const DoctorArguments& arguments);
ExitCode eval(const EvalArguments& arguments);
ExitCode inspect(const InspectArguments& arguments);
ExitCode generate(const GenerateArguments& arguments);
ExitCode merge(const MergeArguments& arguments);
ExitCode options(const OptionsArguments& arguments);
ExitCode plan(const PlanArguments& arguments);
ExitCode report(const ReportArguments& arguments);
ExitCode dry_run();

}  // namespace vlmtrain::app
