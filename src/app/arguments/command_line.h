#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

#include "app/arguments/arguments.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

/// The arguments of all commands. Parsing fills in those of the called command.
struct Arguments {
  TrainArguments train;
  PlanArguments plan;
  InspectArguments inspect;
  DoctorArguments doctor;
  InitArguments init;
  EvalArguments eval;
  GenerateArguments generate;
  MergeArguments merge;
  OptionsArguments options;
  ReportArguments report;
};

/// The parser of the program's command line. Needs no LibTorch (docs/architecture.md).
class CommandLine {
 public:
  CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Parses the arguments without the program's name. Returns an exit code where nothing remains to
  /// do: help or the version was printed, or an error on stderr.
  std::optional<ExitCode> parse(std::vector<std::string> arguments);

  /// Returns the called command, for example "train". REQUIRES: parse() returned nothing.
  const std::string& command() const { return app_.get_subcommands().front()->get_name(); }
  const Arguments& arguments() const { return arguments_; }

 private:
  CLI::App app_;
  Arguments arguments_;
};

/// Prints the error on stderr and returns its exit code.
ExitCode report_user_error(const UserError& error);

}  // namespace vlmtrain::app
