#include "app/command_line.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <sstream>
#include <string_view>

#include "app/standard_streams.h"
#include "app/wrong_words.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::app {

namespace {

struct CommandDeclaration {
  const char* name;
  const char* description;
  void (*declare)(CLI::App& command, Arguments& arguments);
};

/// Not for people: the planner starts it.
void declare_dry_run(CLI::App& command, Arguments& /*all*/) {
  command.group("");
}

constexpr CommandDeclaration kCommands[] = {
    {"train", "train as a configuration says (also without the word: vlmtrain --config FILE)",
     [](CLI::App& command, Arguments& arguments) { declare(command, arguments.train); }},
    {"plan", "say what a run needs on a GPU; no GPU is needed, no weights are read",
     [](CLI::App& command, Arguments& arguments) { declare(command, arguments.plan); }},
    {"inspect", "say what the data of a run is, what of it cannot be used, and show what is trained on",
     [](CLI::App& command, Arguments& arguments) { declare(command, arguments.inspect); }},
    {"doctor", "say what this machine has and lacks, and whether training would start",
     [](CLI::App& command, Arguments& arguments) { declare(command, arguments.doctor); }},
    {"init", "write a checkpoint of a preset: random, or of parts that others trained",
     [](CLI::App& command, Arguments& arguments) { declare(command, arguments.init); }},
    {"eval", "loss and accuracy of a checkpoint on a data set",
     [](CLI::App& command, Arguments& arguments) { declare(command, arguments.eval); }},
    {"generate", "answer a question about images",
     [](CLI::App& command, Arguments& arguments) { declare(command, arguments.generate); }},
    {"merge", "fold a LoRA adapter into its base's weights",
     [](CLI::App& command, Arguments& arguments) { declare(command, arguments.merge); }},
    {"options", "list every configuration key",
     [](CLI::App& command, Arguments& arguments) { declare(command, arguments.options); }},
    {"report", "write the report of a run, report.html, from the files in its folder",
     [](CLI::App& command, Arguments& arguments) { declare(command, arguments.report); }},
    {"rehearse", "run steps on a virtual card, as lines on stdin say", declare_dry_run},
};

/// `vlmtrain --config F` is `vlmtrain train --config F`.
void insert_default_command(std::vector<std::string>& arguments) {
  constexpr std::string_view kTopLevelFlags[] = {"--help", "-h", "--version"};
  if (arguments.empty() || !arguments.front().starts_with('-')) return;
  if (std::find(std::begin(kTopLevelFlags), std::end(kTopLevelFlags), arguments.front()) != std::end(kTopLevelFlags))
    return;
  arguments.insert(arguments.begin(), "train");
}

}  // namespace

CommandLine::CommandLine() : app_("Fine-tunes vision-language models and plans its own memory.", "vlmtrain") {
  app_.set_version_flag("--version", VLMTRAIN_VERSION);
  app_.require_subcommand(1);
  for (const auto& entry : kCommands) {
    entry.declare(*app_.add_subcommand(entry.name, entry.description), arguments_);
  }
}

std::optional<ExitCode> CommandLine::parse(std::vector<std::string> arguments) {
  insert_default_command(arguments);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 takes them
  try {
    app_.parse(reversed);
  } catch (const CLI::Success& success) {  // --help or --version
    std::ostringstream out;
    app_.exit(success, out, out);
    std::fputs(out.str().c_str(), stdout);
    return flush_stdout(ExitCode::kSuccess);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "vlmtrain: error: %s\n", to_printable(describe_usage_error(app_, error, arguments)).c_str());
    return ExitCode::kUsage;
  }
  return std::nullopt;
}

ExitCode report_user_error(const UserError& error) {
  std::fprintf(stderr, "vlmtrain: error: %s\n", to_printable_message(error.what()).c_str());
  return error.code();
}

}  // namespace vlmtrain::app
