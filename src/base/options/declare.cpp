#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/options/declarations.h"
#include "base/options/yaml_values.h"

namespace vlmtrain {

OptionTable::OptionTable() : declarations_(std::make_unique<OptionDeclarations>()) {}
OptionTable::~OptionTable() = default;
OptionTable::OptionTable(OptionTable&&) noexcept = default;
OptionTable& OptionTable::operator=(OptionTable&&) noexcept = default;

template <class T>
void OptionTable::add(std::string_view key, T& target, const OptionInfo& info,
                      std::optional<ValueCheck<std::type_identity_t<T>>> check) {
  OptionDeclarations::Option option{.key = std::string(key),
                                    .type = get_type_name<T>(),
                                    .default_value_text = to_yaml_text(target),
                                    .condition = check ? check->description : "",
                                    .info = info,
                                    .set = {},
                                    .emit_value = {}};
  option.set = [&target, check](const YAML::Node& node) -> std::optional<std::string> {
    const auto value = parse_yaml_value<T>(node);
    if (!value) {
      if (std::is_same_v<T, StringMap> && node.IsMap()) {
        return "every entry must be a name and a value, such as {name: value}";
      }
      const std::string actual = node.IsScalar() ? node.Scalar() : node.IsNull() ? "nothing" : "a list or section";
      const std::string type = std::is_same_v<T, std::vector<std::string>> ? "list of strings"
                               : std::is_same_v<T, StringMap>              ? "map of strings"
                                                                           : get_type_name<T>();
      return fmt::format("must be {} {}, not {}", type.starts_with("integer") ? "an" : "a", type, make_excerpt(actual));
    }
    if (check && !check->is_satisfied(*value))
      return fmt::format("must be {}, not {}", check->description, make_excerpt(to_yaml_text(*value)));
    target = *value;
    return std::nullopt;
  };
  option.emit_value = [&target](YAML::Emitter& out) { emit_yaml(out, target); };
  if constexpr (std::is_same_v<T, StringMap>) {
    option.set_entry = [&target, set = option.set](const std::string& name, const YAML::Node& text) {
      YAML::Node merged_map;
      for (const auto& [entry_name, value] : target) merged_map[entry_name] = value;
      merged_map[name] = text;
      return set(merged_map);
    };
  }
  declarations_->add_option(std::move(option));
}

void OptionTable::add_enum_by_index(std::string_view key, std::vector<std::string> names,
                                    const std::function<size_t()>& get, const std::function<void(size_t)>& set,
                                    const OptionInfo& info) {
  OptionDeclarations::Option option{.key = std::string(key),
                                    .type = "enum",
                                    .default_value_text = names.at(get()),
                                    .condition = fmt::format("one of {}", fmt::join(names, ", ")),
                                    .info = info,
                                    .set = {},
                                    .emit_value = {}};
  option.set = [names, set](const YAML::Node& node) -> std::optional<std::string> {
    const auto text = parse_yaml_value<std::string>(node);
    const auto it = text ? std::find(names.begin(), names.end(), *text) : names.end();
    if (it == names.end()) {
      return fmt::format("must be one of {}, not {}", fmt::join(names, ", "),
                         text ? make_excerpt(*text) : "a list or section");
    }
    set(static_cast<size_t>(it - names.begin()));
    return std::nullopt;
  };
  option.emit_value = [names, get](YAML::Emitter& out) { out << names.at(get()); };
  declarations_->add_option(std::move(option));
}

void OptionTable::add_structured_option(std::string_view key, std::string type,
                                        const std::function<nlohmann::ordered_json()>& get,
                                        std::function<std::optional<std::string>(const nlohmann::ordered_json&)> set,
                                        const OptionInfo& info) {
  const auto emit_value = [get](YAML::Emitter& out) { emit_json_as_yaml(out, get()); };
  YAML::Emitter default_value_text;
  emit_value(default_value_text);
  OptionDeclarations::Option option{.key = std::string(key),
                                    .type = std::move(type),
                                    .default_value_text = default_value_text.c_str(),
                                    .condition = {},
                                    .info = info,
                                    .set = {},
                                    .emit_value = emit_value};
  option.set = [set = std::move(set)](const YAML::Node& node) -> std::optional<std::string> {
    constexpr int kMaxStructuredDepth = 8;  // deeper than any structured option
    nlohmann::ordered_json value;
    if (auto error = yaml_to_json(node, kMaxStructuredDepth, value)) return error;
    return set(value);
  };
  declarations_->add_option(std::move(option));
}

void OptionTable::add_foreign_keys(std::vector<std::string> names, std::string advice) {
  declarations_->add_hints(names, /*key=*/"", advice);
  declarations_->foreign_keys.push_back({.names = std::move(names), .text = std::move(advice)});
}

void OptionTable::set_section_description(std::string section, std::string doc) {
  declarations_->sections.emplace_back(std::move(section), std::move(doc));
}

template void OptionTable::add(std::string_view, bool&, const OptionInfo&, std::optional<ValueCheck<bool>>);
template void OptionTable::add(std::string_view, int64_t&, const OptionInfo&, std::optional<ValueCheck<int64_t>>);
template void OptionTable::add(std::string_view, double&, const OptionInfo&, std::optional<ValueCheck<double>>);
template void OptionTable::add(std::string_view, std::string&, const OptionInfo&,
                               std::optional<ValueCheck<std::string>>);
template void OptionTable::add(std::string_view, std::vector<std::string>&, const OptionInfo&,
                               std::optional<ValueCheck<std::vector<std::string>>>);
template void OptionTable::add(std::string_view, StringMap&, const OptionInfo&, std::optional<ValueCheck<StringMap>>);
template void OptionTable::add(std::string_view, AutoOr<int64_t>&, const OptionInfo&,
                               std::optional<ValueCheck<AutoOr<int64_t>>>);
template void OptionTable::add(std::string_view, AutoOr<double>&, const OptionInfo&,
                               std::optional<ValueCheck<AutoOr<double>>>);

}  // namespace vlmtrain
