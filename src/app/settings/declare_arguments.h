#pragma once

#include "app/settings/arguments.h"

namespace CLI {
class App;
}  // namespace CLI

namespace vlmtrain::app {

// Each function adds the flags and positional arguments of a command to `command` and binds them to
// `arguments`, which must outlive it. The last value of a repeated flag of `plan` counts.
void declare_arguments(CLI::App& command, TrainArguments& arguments);
void declare_arguments(CLI::App& command, PlanArguments& arguments);
void declare_arguments(CLI::App& command, InspectArguments& arguments);
void declare_arguments(CLI::App& command, DoctorArguments& arguments);
void declare_arguments(CLI::App& command, InitArguments& arguments);
void declare_arguments(CLI::App& command, EvalArguments& arguments);
void declare_arguments(CLI::App& command, GenerateArguments& arguments);
void declare_arguments(CLI::App& command, MergeArguments& arguments);
void declare_arguments(CLI::App& command, DownloadArguments& arguments);
void declare_arguments(CLI::App& command, OptionsArguments& arguments);
void declare_arguments(CLI::App& command, ReportArguments& arguments);

}  // namespace vlmtrain::app
