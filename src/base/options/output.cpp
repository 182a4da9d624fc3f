#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/options/declarations.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain {

namespace {

/// Returns the names in backticks, separated by commas.
std::string format_names(const std::vector<std::string>& names) {
  return fmt::format("`{}`", fmt::join(names, "`, `"));
}

/// Returns for example "integer (tokens, at least 1)".
std::string describe_type(const std::string& type, const std::string& unit, const std::string& condition) {
  if (unit.empty() && condition.empty()) return type;
  return fmt::format("{} ({}{}{})", type, unit, unit.empty() || condition.empty() ? "" : ", ", condition);
}

}  // namespace

std::string_view to_string(ResumeRule rule) {
  switch (rule) {
    case ResumeRule::kFree:
      return "free";
    case ResumeRule::kIfRequested:
      return "changed";
    case ResumeRule::kNever:
      return "never";
  }
  throw InternalError("unknown resume rule");
}

std::optional<ResumeRule> OptionTable::find_resume_rule(std::string_view key) const {
  const auto* const option = declarations_->find_option(key);
  return option == nullptr ? std::nullopt : std::optional<ResumeRule>(option->info.resume);
}

std::vector<std::string> OptionTable::list_keys(ResumeRule rule) const {
  std::vector<std::string> keys;
  for (const auto& option : declarations_->options) {
    if (option.info.resume == rule) keys.push_back(option.key);
  }
  return keys;
}

std::string OptionTable::format_value(std::string_view key) const {
  const auto* const option = declarations_->find_option(key);
  VLMTRAIN_CHECK(option != nullptr, "no option {} is declared", key);
  YAML::Emitter out;
  option->emit_value(out);
  return out.c_str();
}

std::string OptionTable::to_yaml() const {
  YAML::Emitter out;
  std::vector<std::string> section_names;
  std::map<std::string, std::vector<const OptionDeclarations::Option*>> sections;
  for (const auto& option : declarations_->options) {
    const std::string section = option.key.substr(0, option.key.find('.'));
    if (sections[section].empty()) section_names.push_back(section);
    sections[section].push_back(&option);
  }
  out << YAML::BeginMap;
  for (const auto& section : section_names) {
    out << YAML::Key << section << YAML::Value << YAML::BeginMap;
    for (const auto* option : sections[section]) {
      out << YAML::Key << option->key.substr(section.size() + 1) << YAML::Value;
      option->emit_value(out);
    }
    out << YAML::EndMap;
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

std::string OptionTable::to_markdown() const {
  std::string text = fmt::format(
      "# Configuration\n\n"
      "Written by `vlmtrain options --markdown` from the declarations in the code; a test keeps it current.\n"
      "Every key can be overridden on the command line: `vlmtrain --config train.yaml {}=10`.\n"
      "The column `resume` shows whether a run may resume with another value (docs/resuming.md): `free`, only with "
      "`{}=changed`, or `never`.\n",
      keys::training::kMaxSteps, keys::training::kResume);
  for (const auto& [section, doc] : declarations_->sections) {
    text += fmt::format("\n## `{}`\n\n{}\n\n| key | type | default | resume | meaning |\n|---|---|---|---|---|\n",
                        section, doc);
    for (const auto& option : declarations_->options) {
      if (!option.key.starts_with(section + ".")) continue;
      const auto& aliases = option.info.aliases;
      text += fmt::format("| `{}` | {} | `{}` | {} | {}{} |\n", option.key,
                          describe_type(option.type, option.info.unit, option.condition), option.default_value_text,
                          to_string(option.info.resume), option.info.doc,
                          aliases.empty() ? "" : fmt::format(" Alias: {}.", format_names(aliases)));
    }
  }
  text +=
      "\n## Keys of other trainers\n\n"
      "These keys are errors, in every section, because their meaning may differ. The message names the equivalent.\n\n"
      "| key | equivalent |\n|---|---|\n";
  const auto add_hints = [&text](const std::vector<OptionHint>& hints) {
    for (const auto& [names, equivalent] : hints) text += fmt::format("| {} | {} |\n", format_names(names), equivalent);
  };
  for (const auto& option : declarations_->options) add_hints(option.info.hints);
  add_hints(declarations_->foreign_keys);
  return text;
}

}  // namespace vlmtrain
