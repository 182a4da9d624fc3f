#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/settings/arguments.h"
#include "vlmtrain/base/error.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
}  // namespace CLI

namespace vlmtrain::app {

/// The parser of the program's command line. Does not use LibTorch, so that help and errors need
/// not wait until it is loaded (docs/contributing/architecture.md).
class CommandLine {
 public:
  CommandLine();
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Parses the arguments without the program's name. Returns an exit code if there is no command
  /// to run, because it has printed help or the version on stdout or an error on stderr; otherwise
  /// nothing. May be called once.
  std::optional<ExitCode> parse(std::vector<std::string> arguments);

  /// Returns the called command, for example "train". REQUIRES: parse() returned nothing.
  const std::string& command() const;
  const Arguments& arguments() const { return arguments_; }

 private:
  std::unique_ptr<CLI::App> app_;
  Arguments arguments_;
};

/// Runs `vlmtrain options`: prints all keys of the configuration on stdout.
ExitCode list_options(const OptionsArguments& arguments);

/// Prints the error on stderr and returns its exit code.
ExitCode report_user_error(const UserError& error);

}  // namespace vlmtrain::app
