#include "app/settings/command_line.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>

#include "app/settings/declare_arguments.h"
#include "app/settings/process_setup.h"
#include "vlmtrain/base/options.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

namespace {

/// Returns "max-steps" for "--max-steps=10".
std::string extract_flag_name(std::string argument) {
  argument.erase(0, argument.find_first_not_of('-'));
  argument.resize(std::min(argument.size(), argument.find('=')));
  return argument;
}

/// Returns "max_steps" for "max-steps": configuration keys have underscores, flags have hyphens.
std::string replace_hyphens_with_underscores(std::string argument) {
  std::replace(argument.begin(), argument.end(), '-', '_');
  return argument;
}

bool has_yaml_extension(const std::string& argument) {
  return argument.ends_with(".yaml") || argument.ends_with(".yml");
}

/// An earlier name of a flag, which is accepted silently.
struct FlagAlias {
  std::string_view alias, flag;
};
constexpr FlagAlias kFlagAliases[] = {{"launch", "nproc-per-node"}, {"mix", "image-mix"}};

/// Returns the flag of an earlier name, else `name`. Both without hyphens at the beginning.
std::string resolve_flag_alias(const std::string& name) {
  const auto it = std::ranges::find(kFlagAliases, name, &FlagAlias::alias);
  return std::string(it == std::end(kFlagAliases) ? std::string_view(name) : it->flag);
}

/// Returns the names of the flags of `command`, then their earlier names.
std::vector<std::string> list_flag_names(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* const option : command.get_options()) {
    const auto& names = option->get_lnames();
    flags.insert(flags.end(), names.begin(), names.end());
  }
  for (const FlagAlias& alias : kFlagAliases) {
    if (std::ranges::find(flags, alias.flag) != flags.end()) flags.emplace_back(alias.alias);
  }
  return flags;
}

/// Replaces earlier names of flags of `command` in `arguments`. Returns an error message if a flag
/// is present under both names.
std::optional<std::string> replace_flag_aliases(const CLI::App& command, std::vector<std::string>& arguments) {
  const auto is_flag = [](const std::string& argument, std::string_view flag) {
    return argument.starts_with("--") && extract_flag_name(argument) == flag;
  };
  for (const FlagAlias& entry : kFlagAliases) {
    const std::string_view alias = entry.alias, flag = entry.flag;
    if (command.get_option_no_throw(fmt::format("--{}", flag)) == nullptr) continue;
    const bool has_flag = std::ranges::any_of(arguments, [&](const auto& word) { return is_flag(word, flag); });
    for (std::string& argument : arguments) {
      if (!is_flag(argument, alias)) continue;
      if (has_flag) return fmt::format("--{0} and --{1} are the same flag; keep --{1}", alias, flag);
      argument.replace(2, alias.size(), flag);
    }
  }
  return std::nullopt;
}

/// Returns whether the command has the positional argument `overrides`, key=value for any
/// configuration key.
bool accepts_config_overrides(const CLI::App& command) {
  const auto positional_options =
      command.get_options([](const CLI::Option* option) { return option->get_positional(); });
  return std::any_of(positional_options.begin(), positional_options.end(),
                     [](const CLI::Option* option) { return option->get_name(true) == "overrides"; });
}

/// Returns an error message that suggests a similar flag or configuration key. `value` is the value
/// of the flag, or "" if it has none.
std::string describe_unknown_flag(const CLI::App& command, const std::string& flag, const std::string& value) {
  const std::string unknown_flag_name = extract_flag_name(flag);
  const auto flags = list_flag_names(command);
  const auto is_same_flag = [&](const std::string& flag_name) {
    return replace_hyphens_with_underscores(flag_name) == replace_hyphens_with_underscores(unknown_flag_name);
  };
  if (const auto match = std::find_if(flags.begin(), flags.end(), is_same_flag); match != flags.end()) {
    return fmt::format("{}: unknown option; did you mean --{}?", flag, resolve_flag_alias(*match));
  }
  if (accepts_config_overrides(command)) {
    train::Config config;
    const OptionTable options = train::declare_options(config);
    if (const auto key = options.find_key(replace_hyphens_with_underscores(unknown_flag_name))) {
      return fmt::format("{}: keys of the configuration are written key=value: {}={}", flag, *key,
                         value.empty() ? "…" : value);
    }
    if (const auto suggestion = find_nearest_word(unknown_flag_name, flags)) {
      return fmt::format("{}: unknown option; did you mean --{}?", flag, resolve_flag_alias(*suggestion));
    }
    return fmt::format("{}: unknown option of vlmtrain {}; configuration keys are written key=value: {}", flag,
                       command.get_name(),
                       options.make_key_suggestion(replace_hyphens_with_underscores(unknown_flag_name)));
  }
  const auto suggestion = find_nearest_word(unknown_flag_name, flags);
  return fmt::format("{}: unknown option; {}", flag,
                     suggestion ? fmt::format("did you mean --{}?", resolve_flag_alias(*suggestion))
                                : fmt::format("vlmtrain {} --help lists the options", command.get_name()));
}

/// Returns an error message for CLI11's `message`, such as "Could not convert: --images = two".
/// Returns a message of another form unchanged.
std::string describe_invalid_number(const CLI::App& command, const std::string& message) {
  constexpr std::string_view kEqualsSign = " = ";
  const auto begin = message.find("--");
  const auto equals_position = message.find(kEqualsSign);
  if (begin == std::string::npos || equals_position == std::string::npos || equals_position < begin) return message;
  const std::string flag = message.substr(begin, equals_position - begin);
  const CLI::Option* const option = command.get_option_no_throw(flag);
  const bool accepts_fraction = option != nullptr && option->get_type_name().starts_with("FLOAT");
  return fmt::format("{}: must be {}, such as {}, not {}", flag, accepts_fraction ? "a number" : "an integer",
                     accepts_fraction ? "24" : "2", message.substr(equals_position + kEqualsSign.size()));
}

/// Returns the argument that follows `flag`, or "" if there is none or it is another flag.
std::string find_flag_value(const std::string& flag, const std::vector<std::string>& arguments) {
  const auto it = std::find(arguments.begin(), arguments.end(), flag);
  if (arguments.end() - it < 2 || (it + 1)->starts_with('-')) return "";
  return *(it + 1);
}

std::string describe_unexpected_argument(const CLI::App& command, const std::vector<std::string>& arguments) {
  const auto remaining_arguments = command.remaining();
  if (remaining_arguments.empty()) return "an argument is unexpected";
  const std::string& first_argument = remaining_arguments.front();
  if (first_argument.starts_with('-')) {
    const auto equals_position = first_argument.find('=');
    const bool has_value = equals_position != std::string::npos;
    return describe_unknown_flag(
        command, first_argument.substr(0, equals_position),
        has_value ? first_argument.substr(equals_position + 1) : find_flag_value(first_argument, arguments));
  }
  return fmt::format("{}: unexpected argument; vlmtrain {} --help shows the usage", first_argument, command.get_name());
}

std::string describe_unknown_command(const CLI::App& app, const std::string& argument) {
  std::error_code error;
  if (has_yaml_extension(argument)) {
    return fmt::format("{0}: not a command; pass a configuration with --config: vlmtrain --config {0}", argument);
  }
  if (argument.find('=') != std::string::npos) {
    return fmt::format("{0}: not a command; configuration keys follow the file: vlmtrain --config FILE {0}", argument);
  }
  if (std::filesystem::is_directory(argument, error)) {
    return fmt::format("{}: is a folder, not a command; vlmtrain --help lists the commands", argument);
  }
  std::vector<std::string> names;
  for (const CLI::App* const command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  const auto matching_name =
      std::find_if(names.begin(), names.end(), [&](const std::string& name) { return argument.starts_with(name); });
  const auto suggestion =
      matching_name != names.end() ? std::optional(*matching_name) : find_nearest_word(argument, names);
  return fmt::format("{}: unknown command; {}", argument,
                     suggestion ? fmt::format("did you mean {}?", *suggestion) : "vlmtrain --help lists the commands");
}

/// Returns a one-line error message with advice for a command line that CLI11 rejects with `error`.
/// `arguments` are as typed, without the program's name.
std::string describe_usage_error(const CLI::App& app, const CLI::ParseError& error,
                                 const std::vector<std::string>& arguments) {
  const auto parsed_subcommands = app.get_subcommands();
  if (parsed_subcommands.empty()) {
    return arguments.empty() ? "a command is missing; vlmtrain --help lists the commands"
                             : describe_unknown_command(app, arguments.front());
  }
  const CLI::App& command = *parsed_subcommands.front();
  // An unknown flag may be a misspelled required one, so it is reported first.
  const auto remaining_arguments = command.remaining();
  const bool has_unknown_flag = !remaining_arguments.empty() && remaining_arguments.front().starts_with('-');
  if (has_unknown_flag || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    return describe_unexpected_argument(command, arguments);
  }
  if (const auto config = std::find_if(arguments.begin(), arguments.end(), has_yaml_extension);
      config != arguments.end() && std::string_view(error.what()) == "--config is required") {
    return fmt::format("{1}: unexpected argument; pass a configuration with --config: vlmtrain {0} --config {1}",
                       command.get_name(), *config);
  }
  const bool is_conversion_error = dynamic_cast<const CLI::ConversionError*>(&error) != nullptr;
  return fmt::format("{}; vlmtrain {} --help shows the usage",
                     is_conversion_error ? describe_invalid_number(command, error.what()) : error.what(),
                     command.get_name());
}

struct CommandDeclaration {
  const char* name;
  const char* description;
  void (*declare_arguments)(CLI::App& command, Arguments& arguments);
};

void declare_dry_run_command(CLI::App& command, Arguments& /*arguments*/) {
  command.group("");  // CLI11 hides commands without a group from the help; only the planner starts it
}

constexpr CommandDeclaration kCommands[] = {
    {"train", "train with a configuration; the default command: vlmtrain --config FILE",
     [](CLI::App& command, Arguments& arguments) { declare_arguments(command, arguments.train); }},
    {"plan", "report the memory and time that a run needs on a GPU; requires no GPU and reads no weights",
     [](CLI::App& command, Arguments& arguments) { declare_arguments(command, arguments.plan); }},
    {"inspect", "preview the training data: what is used, what is dropped, and why",
     [](CLI::App& command, Arguments& arguments) { declare_arguments(command, arguments.inspect); }},
    {"doctor", "check this machine and report whether training would start",
     [](CLI::App& command, Arguments& arguments) { declare_arguments(command, arguments.doctor); }},
    {"init", "write a checkpoint of a preset, random or from parts of pretrained models",
     [](CLI::App& command, Arguments& arguments) { declare_arguments(command, arguments.init); }},
    {"eval", "compute loss and accuracy of a checkpoint on a data set",
     [](CLI::App& command, Arguments& arguments) { declare_arguments(command, arguments.eval); }},
    {"generate", "answer a question about images",
     [](CLI::App& command, Arguments& arguments) { declare_arguments(command, arguments.generate); }},
    {"merge", "merge a LoRA adapter into its base's weights",
     [](CLI::App& command, Arguments& arguments) { declare_arguments(command, arguments.merge); }},
    {"download", "download models and data from the Hugging Face Hub into its cache",
     [](CLI::App& command, Arguments& arguments) { declare_arguments(command, arguments.download); }},
    {"options", "list every configuration key",
     [](CLI::App& command, Arguments& arguments) { declare_arguments(command, arguments.options); }},
    {"report", "write the report of a run, report.html, from the files in its folder",
     [](CLI::App& command, Arguments& arguments) { declare_arguments(command, arguments.report); }},
    {"dry-run", "dry-run steps on a virtual GPU, as requested on stdin", declare_dry_run_command},
};

/// Makes `vlmtrain --config F` mean `vlmtrain train --config F`.
void insert_default_command(std::vector<std::string>& arguments) {
  constexpr std::string_view kTopLevelFlags[] = {"--help", "-h", "--version"};
  if (arguments.empty() || !arguments.front().starts_with('-')) return;
  if (std::find(std::begin(kTopLevelFlags), std::end(kTopLevelFlags), arguments.front()) != std::end(kTopLevelFlags))
    return;
  arguments.insert(arguments.begin(), "train");
}

}  // namespace

CommandLine::CommandLine()
    : app_(std::make_unique<CLI::App>("Fine-tunes vision-language models and plans its own memory.", "vlmtrain")) {
  app_->set_version_flag("--version", VLMTRAIN_VERSION);
  app_->require_subcommand(1);
  for (const auto& entry : kCommands) {
    entry.declare_arguments(*app_->add_subcommand(entry.name, entry.description), arguments_);
  }
}

CommandLine::~CommandLine() = default;

const std::string& CommandLine::command() const {
  return app_->get_subcommands().front()->get_name();
}

std::optional<ExitCode> CommandLine::parse(std::vector<std::string> arguments) {
  insert_default_command(arguments);
  for (const CLI::App* const command : app_->get_subcommands(nullptr)) {
    if (arguments.empty() || command->get_name() != arguments.front()) continue;
    if (const auto error = replace_flag_aliases(*command, arguments)) {
      std::fprintf(stderr, "vlmtrain: error: %s\n", to_printable(*error).c_str());
      return ExitCode::kUsage;
    }
  }
  std::vector<std::string> reversed_arguments(arguments.rbegin(), arguments.rend());  // the order that CLI11 expects
  try {
    app_->parse(reversed_arguments);
  } catch (const CLI::Success& success) {  // --help or --version
    std::ostringstream out;
    app_->exit(success, out, out);
    std::fputs(out.str().c_str(), stdout);
    return flush_stdout(ExitCode::kSuccess);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "vlmtrain: error: %s\n", to_printable(describe_usage_error(*app_, error, arguments)).c_str());
    return ExitCode::kUsage;
  }
  return std::nullopt;
}

ExitCode report_user_error(const UserError& error) {
  std::fprintf(stderr, "vlmtrain: error: %s\n", to_printable_message(error.what()).c_str());
  return error.code();
}

ExitCode list_options(const OptionsArguments& arguments) {
  train::Config config;
  const OptionTable table = train::declare_options(config);
  fmt::print("{}", arguments.markdown ? table.to_markdown() : table.to_yaml());
  return ExitCode::kSuccess;
}

}  // namespace vlmtrain::app
