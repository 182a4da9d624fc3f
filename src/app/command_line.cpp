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

struct CommandEntry {
  const char* name;
  const char* description;
  void (*declare)(CLI::App& command, Arguments& all);
};

/// Not for people: the planner starts it.
void declare_rehearse(CLI::App& command, Arguments& /*all*/) {
  command.group("");
}

constexpr CommandEntry kCommands[] = {
    {"train", "train as a configuration says (also without the word: vlmtrain --config FILE)",
     [](CLI::App& command, Arguments& all) { declare(command, all.train); }},
    {"plan", "say what a run needs on a GPU; no GPU is needed, no weights are read",
     [](CLI::App& command, Arguments& all) { declare(command, all.plan); }},
    {"inspect", "say what the data of a run is, what of it cannot be used, and show what is trained on",
     [](CLI::App& command, Arguments& all) { declare(command, all.inspect); }},
    {"doctor", "say what this machine has and lacks, and whether training would start",
     [](CLI::App& command, Arguments& all) { declare(command, all.doctor); }},
    {"init", "write a checkpoint of a preset: random, or of parts that others trained",
     [](CLI::App& command, Arguments& all) { declare(command, all.init); }},
    {"eval", "loss and accuracy of a checkpoint on a data set",
     [](CLI::App& command, Arguments& all) { declare(command, all.eval); }},
    {"generate", "answer a question about images",
     [](CLI::App& command, Arguments& all) { declare(command, all.generate); }},
    {"merge", "fold a LoRA adapter into its base's weights",
     [](CLI::App& command, Arguments& all) { declare(command, all.merge); }},
    {"options", "list every configuration key",
     [](CLI::App& command, Arguments& all) { declare(command, all.options); }},
    {"report", "write the report of a run, report.html, from the files in its folder",
     [](CLI::App& command, Arguments& all) { declare(command, all.report); }},
    {"rehearse", "run steps on a virtual card, as lines on stdin say", declare_rehearse},
};

/// `vlmtrain --config F` is `vlmtrain train --config F`.
void put_default_command(std::vector<std::string>& words) {
  constexpr std::string_view kOwnFlags[] = {"--help", "-h", "--version"};
  if (words.empty() || !words.front().starts_with('-')) return;
  if (std::find(std::begin(kOwnFlags), std::end(kOwnFlags), words.front()) != std::end(kOwnFlags)) return;
  words.insert(words.begin(), "train");
}

}  // namespace

CommandLine::CommandLine() : app_("Fine-tunes vision-language models and plans its own memory.", "vlmtrain") {
  app_.set_version_flag("--version", VLMTRAIN_VERSION);
  app_.require_subcommand(1);
  for (const auto& entry : kCommands) {
    entry.declare(*app_.add_subcommand(entry.name, entry.description), arguments_);
  }
}

std::optional<ExitCode> CommandLine::parse(std::vector<std::string> words) {
  put_default_command(words);
  std::vector<std::string> reversed(words.rbegin(), words.rend());  // as CLI11 takes them
  try {
    app_.parse(reversed);
  } catch (const CLI::Success& asked_for) {  // --help or --version
    std::ostringstream out;
    app_.exit(asked_for, out, out);
    std::fputs(out.str().c_str(), stdout);
    return after_printing(ExitCode::kDone);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "vlmtrain: error: %s\n", printable(wrong_words(app_, error, words)).c_str());
    return ExitCode::kUsage;
  }
  return std::nullopt;
}

ExitCode say(const UserError& error) {
  std::fprintf(stderr, "vlmtrain: error: %s\n", printable_message(error.what()).c_str());
  return error.code();
}

}  // namespace vlmtrain::app
