#include "app/wrong_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "vlmtrain/base/options.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

namespace {

std::string without_dashes(std::string word) {
  word.erase(0, word.find_first_not_of('-'));
  word.resize(std::min(word.size(), word.find('=')));
  return word;
}

std::string as_key(std::string word) {
  std::replace(word.begin(), word.end(), '-', '_');
  return word;
}

bool is_yaml_file(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml");
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* const option : command.get_options()) {
    const auto& names = option->get_lnames();
    flags.insert(flags.end(), names.begin(), names.end());
  }
  return flags;
}

bool takes_keys(const CLI::App& command) {
  const auto positional = command.get_options([](const CLI::Option* option) { return option->get_positional(); });
  return std::any_of(positional.begin(), positional.end(),
                     [](const CLI::Option* option) { return option->get_name(true) == "overrides"; });
}

/// `value` is what stood behind the flag, if anything.
std::string unknown_flag(const CLI::App& command, const std::string& flag, const std::string& value) {
  const std::string word = without_dashes(flag);
  const auto flags = flags_of(command);
  const auto is_word = [&](const std::string& known) { return as_key(known) == as_key(word); };
  if (const auto same = std::find_if(flags.begin(), flags.end(), is_word); same != flags.end()) {
    return fmt::format("{}: unknown option; did you mean --{}?", flag, *same);
  }
  if (takes_keys(command)) {
    train::Config config;
    const OptionTable options = train::declare(config);
    const std::string whole = as_key(word);
    const auto key = options.key_of_word(whole.substr(whole.rfind('.') + 1));
    if (key && (*key == whole || whole.find('.') == std::string::npos)) {
      return fmt::format("{}: keys of the configuration are written key=value: {}={}", flag, *key,
                         value.empty() ? "…" : value);
    }
    if (const auto near = nearest(word, flags)) {
      return fmt::format("{}: unknown option; did you mean --{}?", flag, *near);
    }
    return fmt::format("{}: unknown option of vlmtrain {}; of keys, which are written key=value: {}", flag,
                       command.get_name(), options.remedy_of_unknown(as_key(word)));
  }
  const auto near = nearest(word, flags);
  return fmt::format("{}: unknown option; {}", flag,
                     near ? fmt::format("did you mean --{}?", *near)
                          : fmt::format("vlmtrain {} --help lists them", command.get_name()));
}

/// Of CLI11's "Could not convert: --images = two".
std::string no_number(const CLI::App& command, const std::string& what) {
  constexpr std::string_view kEquals = " = ";
  const auto begin = what.find("--");
  const auto equals = what.find(kEquals);
  if (begin == std::string::npos || equals == std::string::npos || equals < begin) return what;
  const std::string flag = what.substr(begin, equals - begin);
  const CLI::Option* const option = command.get_option_no_throw(flag);
  const bool is_fraction = option != nullptr && option->get_type_name().starts_with("FLOAT");
  return fmt::format("{}: must be a {}, such as {}, not {}", flag, is_fraction ? "number" : "whole number",
                     is_fraction ? "24" : "2", what.substr(equals + kEquals.size()));
}

/// What stands behind a flag, unless that is the next one.
std::string value_behind(const std::string& flag, const std::vector<std::string>& arguments) {
  const auto place = std::find(arguments.begin(), arguments.end(), flag);
  if (arguments.end() - place < 2 || (place + 1)->starts_with('-')) return "";
  return *(place + 1);
}

std::string not_expected(const CLI::App& command, const std::vector<std::string>& arguments) {
  const auto left = command.remaining();
  if (left.empty()) return "an argument was not expected";
  const std::string& first = left.front();
  if (first.starts_with('-')) {
    const auto equals = first.find('=');
    const bool is_joined = equals != std::string::npos;
    return unknown_flag(command, first.substr(0, equals),
                        is_joined ? first.substr(equals + 1) : value_behind(first, arguments));
  }
  return fmt::format("{}: not expected here; vlmtrain {} --help shows how it is called", first, command.get_name());
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  std::error_code error;
  if (is_yaml_file(word)) {
    return fmt::format("{0}: a configuration is given as vlmtrain --config {0}", word);
  }
  if (word.find('=') != std::string::npos) {
    return fmt::format("{0}: keys of the configuration stand behind it: vlmtrain --config FILE {0}", word);
  }
  if (std::filesystem::is_directory(word, error)) {
    return fmt::format("{}: is a folder, not a command; vlmtrain --help lists the commands", word);
  }
  std::vector<std::string> names;
  for (const CLI::App* const command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  const auto begins =
      std::find_if(names.begin(), names.end(), [&](const std::string& name) { return word.starts_with(name); });
  const auto near = begins != names.end() ? std::optional(*begins) : nearest(word, names);
  return fmt::format("{}: unknown command; {}", word,
                     near ? fmt::format("did you mean {}?", *near) : "vlmtrain --help lists the known ones");
}

}  // namespace

std::string wrong_words(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& arguments) {
  const auto commands = app.get_subcommands();
  if (commands.empty()) {
    return arguments.empty() ? "a command is missing; vlmtrain --help lists them"
                             : unknown_command(app, arguments.front());
  }
  const CLI::App& command = *commands.front();
  // A flag that there is none of may be why another one is missing.
  const auto left = command.remaining();
  const bool has_unknown_flag = !left.empty() && left.front().starts_with('-');
  if (has_unknown_flag || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    return not_expected(command, arguments);
  }
  if (const auto config = std::find_if(arguments.begin(), arguments.end(), is_yaml_file);
      config != arguments.end() && std::string_view(error.what()) == "--config is required") {
    return fmt::format("{1}: a configuration is given as vlmtrain {0} --config {1}", command.get_name(), *config);
  }
  const bool is_conversion = dynamic_cast<const CLI::ConversionError*>(&error) != nullptr;
  return fmt::format("{}; vlmtrain {} --help shows how it is called",
                     is_conversion ? no_number(command, error.what()) : error.what(), command.get_name());
}

}  // namespace vlmtrain::app
