#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

#include "app/arguments/arguments.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

/// The arguments of all commands; those of the one that is called are filled in.
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

/// The words that the program is called with. Needs no LibTorch (docs/architecture.md).
class CommandLine {
 public:
  CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Takes the words, without the program's name. Returns an exit code where nothing is left to do: help or version is
  /// printed, or stderr says what is wrong with the words.
  std::optional<ExitCode> parse(std::vector<std::string> arguments);

  /// The command that is called, such as "train". REQUIRES: parse() returned nothing.
  const std::string& command() const { return app_.get_subcommands().front()->get_name(); }
  const Arguments& arguments() const { return arguments_; }

 private:
  CLI::App app_;
  Arguments arguments_;
};

/// Says on stderr what the user can mend, and returns the exit code for it.
ExitCode report_user_error(const UserError& error);

}  // namespace vlmtrain::app
