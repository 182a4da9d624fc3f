#include "vlmtrain/base/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <type_traits>

#include "base/config_text.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain {

namespace {

template <class T>
constexpr bool kIsAuto = std::is_same_v<T, Auto<int64_t>> || std::is_same_v<T, Auto<double>>;

using TextMap = std::map<std::string, std::string>;

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, bool>) return "boolean";
  if constexpr (std::is_same_v<T, int64_t>) return "integer";
  if constexpr (std::is_same_v<T, double>) return "number";
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "list of texts";
  if constexpr (std::is_same_v<T, TextMap>) return "section of texts";
  if constexpr (std::is_same_v<T, Auto<int64_t>>) return "integer or auto";
  if constexpr (std::is_same_v<T, Auto<double>>) return "number or auto";
}

template <class T>
void emit(YAML::Emitter& out, const T& value) {
  if constexpr (kIsAuto<T>) {
    if (value) {
      emit(out, *value);
    } else {
      out << "auto";
    }
  } else if constexpr (std::is_same_v<T, double>) {
    out << fmt::format("{}", value);  // the shortest form that reads back as the same number
  } else if constexpr (std::is_same_v<T, std::string>) {
    const std::string shown = printable(value);
    if (value.empty() || shown != value) {
      out << YAML::DoubleQuoted;  // in which yaml-cpp writes escapes
    }
    // YAML is UTF-8. A path that is none cannot be read back, but seen.
    out << (is_utf8(value) ? value : shown);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    out << YAML::Flow << YAML::BeginSeq;
    for (const auto& item : value) emit(out, item);
    out << YAML::EndSeq;
  } else if constexpr (std::is_same_v<T, TextMap>) {
    out << YAML::Flow << YAML::BeginMap;
    for (const auto& [name, text] : value) {
      out << YAML::Key << name << YAML::Value;
      emit(out, text);
    }
    out << YAML::EndMap;
  } else {
    out << value;
  }
}

/// Nothing where the node is not a T.
template <class T>
std::optional<T> parse(const YAML::Node& node) {
  if constexpr (kIsAuto<T>) {
    if (node.IsScalar() && node.Scalar() == "auto") return T{};
    const auto value = parse<typename T::value_type>(node);
    return value ? std::optional<T>{T{*value}} : std::nullopt;
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    if (node.IsNull()) return T{};
    if (node.IsScalar()) return T{node.Scalar()};
    if (!node.IsSequence()) return std::nullopt;
    T items;
    for (const auto& item : node) {
      if (!item.IsScalar()) return std::nullopt;
      items.push_back(item.Scalar());
    }
    return items;
  } else if constexpr (std::is_same_v<T, TextMap>) {
    if (node.IsNull()) return T{};
    if (!node.IsMap()) return std::nullopt;
    T texts;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar() || !entry.second.IsScalar()) return std::nullopt;
      texts[entry.first.Scalar()] = entry.second.Scalar();
    }
    return texts;
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (node.IsNull()) return T{};
    return node.IsScalar() ? std::optional<T>{node.Scalar()} : std::nullopt;
  } else {
    if (!node.IsScalar()) return std::nullopt;
    T value{};
    return YAML::convert<T>::decode(node, value) ? std::optional<T>{value} : std::nullopt;
  }
}

void emit_json(YAML::Emitter& out, const nlohmann::ordered_json& value) {
  if (value.is_object()) {
    out << YAML::Flow << YAML::BeginMap;
    for (const auto& [key, item] : value.items()) {
      emit(out << YAML::Key, key);
      emit_json(out << YAML::Value, item);
    }
    out << YAML::EndMap;
  } else if (value.is_array()) {
    out << YAML::Flow << YAML::BeginSeq;
    for (const auto& item : value) emit_json(out, item);
    out << YAML::EndSeq;
  } else if (value.is_string()) {
    emit(out, value.get<std::string>());
  } else {
    out << value.dump();
  }
}

/// Of a scalar, what it looks like unless it is quoted.
nlohmann::ordered_json json_of_scalar(const YAML::Node& node) {
  const bool is_quoted = node.Tag() == "!";
  if (bool flag = false; !is_quoted && YAML::convert<bool>::decode(node, flag)) return flag;
  if (int64_t number = 0; !is_quoted && YAML::convert<int64_t>::decode(node, number)) return number;
  if (double number = 0; !is_quoted && YAML::convert<double>::decode(node, number)) return number;
  return node.Scalar();
}

/// Nothing where it is deeper than that: an alias may stand within what it names.
std::optional<nlohmann::ordered_json> json_of(const YAML::Node& node, int deepest) {
  if (node.IsScalar()) return json_of_scalar(node);
  if (!node.IsSequence() && !node.IsMap()) return nlohmann::ordered_json();
  if (deepest == 0) return std::nullopt;
  auto json = node.IsMap() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::array();
  for (const auto& entry : node) {
    const auto value = json_of(node.IsMap() ? entry.second : static_cast<const YAML::Node&>(entry), deepest - 1);
    if (!value) return std::nullopt;
    if (node.IsMap()) {
      if (!entry.first.IsScalar()) return std::nullopt;
      json[entry.first.Scalar()] = *value;
    } else {
      json.push_back(*value);
    }
  }
  return json;
}

/// A value as it stands in a message or in the documentation.
template <class T>
std::string show(const T& value) {
  YAML::Emitter out;
  emit(out, value);
  return out.c_str();
}

}  // namespace

template <class T>
Check<T> at_least(T low) {
  return {fmt::format("at least {}", low), [low](const T& value) { return value >= low; }};
}

template <class T>
Check<T> greater_than(T low) {
  return {fmt::format("greater than {}", low), [low](const T& value) { return value > low; }};
}

template <class T>
Check<T> between(T low, T high) {
  return {fmt::format("from {} to {}", low, high),
          [low, high](const T& value) { return value >= low && value <= high; }};
}

template <class T>
Check<T> between_below(T low, T high) {
  return {fmt::format("from {} to below {}", low, high),
          [low, high](const T& value) { return value >= low && value < high; }};
}

struct OptionTable::Declarations {
  struct Option {
    std::string key;
    std::string type;
    std::string default_text;
    std::string doc;
    std::string condition;                                             // empty: any value of the type
    std::function<std::optional<std::string>(const YAML::Node&)> set;  // what is wrong, or nothing
    std::function<void(YAML::Emitter&)> emit_value;
    /// Of a section of texts, sets one of them.
    std::function<std::optional<std::string>(const std::string& name, const YAML::Node&)> set_entry{};
  };

  /// That are told; a file that is no configuration may have any number.
  static constexpr size_t kMostErrors = 100;

  std::vector<Option> options;
  std::vector<std::pair<std::string, std::string>> sections;
  std::function<std::optional<std::string>(std::string_view)> explain_unknown;

  Option* find(std::string_view key) {
    const auto found = std::find_if(options.begin(), options.end(), [&](const Option& o) { return o.key == key; });
    return found == options.end() ? nullptr : &*found;
  }

  std::vector<std::string> keys() const {
    std::vector<std::string> all;
    for (const auto& option : options) all.push_back(option.key);
    return all;
  }

  void put(Option option) {
    VLMTRAIN_CHECK(find(option.key) == nullptr, "option {} is declared twice", option.key);
    VLMTRAIN_CHECK(option.key.find('.') != std::string::npos, "option {} has no section", option.key);
    options.push_back(std::move(option));
  }

  static std::string_view last_word(std::string_view key) { return key.substr(key.rfind('.') + 1); }

  std::optional<std::string> key_of_word(std::string_view word) const {
    const auto found = std::find_if(options.begin(), options.end(),
                                    [&](const Option& option) { return last_word(option.key) == word; });
    return found == options.end() ? std::nullopt : std::optional(found->key);
  }

  /// A word without its section, or with another one's, is meant too.
  std::optional<std::string> nearest_key(std::string_view key) const {
    if (auto same = key_of_word(last_word(key))) return same;
    if (auto near = nearest(key, keys())) return near;
    std::vector<std::string> words;
    for (const auto& option : options) words.emplace_back(last_word(option.key));
    const auto near = nearest(last_word(key), words);
    return near ? key_of_word(*near) : std::nullopt;
  }

  std::string remedy_of_unknown(std::string_view key) const {
    if (const auto here = explain_unknown ? explain_unknown(key) : std::nullopt) {
      return fmt::format("what other trainers call so is here: {}", *here);
    }
    const auto near = nearest_key(key);
    return near ? fmt::format("did you mean {}?", *near) : "`vlmtrain options` lists the known ones";
  }

  void set_value(const std::string& key, const YAML::Node& value, const std::string& where,
                 std::vector<std::string>& errors) {
    Option* option = find(key);
    const size_t dot = key.rfind('.');
    Option* const section = option == nullptr && dot != std::string::npos ? find(key.substr(0, dot)) : nullptr;
    if (section != nullptr && section->set_entry) {
      if (const auto wrong = section->set_entry(key.substr(dot + 1), value)) {
        errors.push_back(fmt::format("{}: {}: {}", where, excerpt(key), *wrong));
      }
      return;
    }
    if (option == nullptr) {
      errors.push_back(fmt::format("{}: unknown key {}; {}", where, excerpt(key), remedy_of_unknown(key)));
      return;
    }
    if (auto wrong =
            has_nul(value) ? std::optional<std::string>("a NUL cannot be part of a value") : option->set(value)) {
      errors.push_back(fmt::format("{}: {}: {}", where, key, *wrong));
    }
  }

  /// An alias may stand within what it names, and a hundred of them for each other: only sections are gone into, and
  /// what stands where a section could, to tell the keys in it.
  void set_node(const YAML::Node& node, const std::string& prefix, const std::string& file,
                std::vector<std::string>& errors) {
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (errors.size() >= kMostErrors) return;
      if (!entry.first.IsScalar()) {
        errors.push_back(
            fmt::format("{}:{}: a key is a word, not a list or section", file, entry.first.Mark().line + 1));
        continue;
      }
      const std::string key = prefix.empty() ? entry.first.Scalar() : prefix + "." + entry.first.Scalar();
      const std::string where = fmt::format("{}:{}", file, entry.first.Mark().line + 1);
      if (!seen.insert(key).second) {
        errors.push_back(fmt::format("{}: {} stands twice; keep one", where, excerpt(key)));
      } else if (entry.second.IsMap() && find(key) == nullptr && (prefix.empty() || is_section(key))) {
        set_node(entry.second, key, file, errors);
      } else if (entry.second.IsNull() && is_section(key)) {
        continue;
      } else if (is_section(key)) {
        errors.push_back(fmt::format(
            "{}: {} is a section: its keys stand below it, indented, each with a blank behind its colon; here is {}",
            where, key, entry.second.IsScalar() ? excerpt(entry.second.Scalar()) : "a list"));
      } else {
        set_value(key, entry.second, where, errors);
      }
    }
  }

  /// How many words `key value` or `key = value` takes from `first` on, one override that a person divided; 0 where
  /// something else stands there.
  size_t words_of_divided(const std::vector<std::string>& words, size_t first) {
    if (find(words[first]) == nullptr || first + 1 == words.size()) return 0;
    const std::string& second = words[first + 1];
    if (second == "=") return first + 2 < words.size() ? 3 : 0;
    return second.find('=') == std::string::npos ? 2 : 0;
  }

  static bool has_nul(const YAML::Node& value) {
    const auto holds = [](const YAML::Node& node) {
      return node.IsScalar() && node.Scalar().find('\0') != std::string::npos;
    };
    const auto entry_holds = [&](const auto& entry) { return holds(entry.first) || holds(entry.second); };
    if (value.IsMap()) return std::any_of(value.begin(), value.end(), entry_holds);
    return holds(value) || (value.IsSequence() && std::any_of(value.begin(), value.end(), holds));
  }

  bool is_section(const std::string& key) const {
    return std::any_of(options.begin(), options.end(),
                       [&](const Option& option) { return option.key.rfind(key + ".", 0) == 0; });
  }
};

OptionTable::OptionTable() : declarations_(std::make_unique<Declarations>()) {}
OptionTable::~OptionTable() = default;
OptionTable::OptionTable(OptionTable&&) noexcept = default;
OptionTable& OptionTable::operator=(OptionTable&&) noexcept = default;

template <class T>
void OptionTable::add(std::string key, T& target, std::string doc, std::optional<Check<T>> check) {
  Declarations::Option option{std::move(key), type_name<T>(), show(target), std::move(doc), {}, {}, {}};
  if (check) option.condition = check->phrase;
  option.set = [&target, check](const YAML::Node& node) -> std::optional<std::string> {
    const auto value = parse<T>(node);
    if (!value) {
      const std::string given = node.IsScalar() ? node.Scalar() : node.IsNull() ? "nothing" : "a list or section";
      return fmt::format("must be {} {}, not {}", type_name<T>().starts_with("integer") ? "an" : "a", type_name<T>(),
                         excerpt(given));
    }
    if (check && !check->holds(*value)) return fmt::format("must be {}, not {}", check->phrase, excerpt(show(*value)));
    target = *value;
    return std::nullopt;
  };
  option.emit_value = [&target](YAML::Emitter& out) { emit(out, target); };
  if constexpr (std::is_same_v<T, TextMap>) {
    option.set_entry = [&target, set = option.set](const std::string& name, const YAML::Node& text) {
      YAML::Node all;
      for (const auto& [other, value] : target) all[other] = value;
      all[name] = text;
      return set(all);
    };
  }
  declarations_->put(std::move(option));
}

void OptionTable::add_named(std::string key, std::vector<std::string> names, const std::function<size_t()>& get,
                            const std::function<void(size_t)>& set, std::string doc) {
  Declarations::Option option{std::move(key),
                              "choice",
                              names.at(get()),
                              std::move(doc),
                              fmt::format("one of {}", fmt::join(names, ", ")),
                              {},
                              {}};
  option.set = [names, set](const YAML::Node& node) -> std::optional<std::string> {
    const auto text = parse<std::string>(node);
    const auto found = text ? std::find(names.begin(), names.end(), *text) : names.end();
    if (found == names.end()) {
      return fmt::format("must be one of {}, not {}", fmt::join(names, ", "),
                         text ? excerpt(*text) : "a list or section");
    }
    set(static_cast<size_t>(found - names.begin()));
    return std::nullopt;
  };
  option.emit_value = [names, get](YAML::Emitter& out) { out << names.at(get()); };
  declarations_->put(std::move(option));
}

void OptionTable::add_structured(std::string key, std::string type, std::function<nlohmann::ordered_json()> get,
                                 std::function<std::optional<std::string>(const nlohmann::ordered_json&)> set,
                                 std::string doc) {
  const auto emit_value = [get](YAML::Emitter& out) { emit_json(out, get()); };
  YAML::Emitter default_text;
  emit_value(default_text);
  Declarations::Option option{std::move(key), std::move(type), default_text.c_str(), std::move(doc), {}, {},
                              emit_value};
  option.set = [set = std::move(set)](const YAML::Node& node) -> std::optional<std::string> {
    constexpr int kDeepest = 8;
    const auto value = json_of(node, kDeepest);
    return value ? set(*value) : "lists and sections stand too deep in each other";
  };
  declarations_->put(std::move(option));
}

void OptionTable::describe_section(std::string section, std::string doc) {
  declarations_->sections.emplace_back(std::move(section), std::move(doc));
}

void OptionTable::explain_unknown(std::function<std::optional<std::string>(std::string_view)> explain) {
  declarations_->explain_unknown = std::move(explain);
}

std::optional<std::string> OptionTable::key_of_word(std::string_view word) const {
  return declarations_->key_of_word(word);
}

std::string OptionTable::remedy_of_unknown(std::string_view key) const {
  return declarations_->remedy_of_unknown(key);
}

void OptionTable::read(const std::filesystem::path& yaml_file, const std::vector<std::string>& overrides) {
  std::vector<std::string> errors;
  if (!yaml_file.empty()) {
    const std::string text = read_config_text(yaml_file);
    try {
      const auto documents = YAML::LoadAll(text);
      if (documents.size() > 1) {
        throw usage_error("{}: holds {} YAML documents; a configuration is one, without a line --- in it",
                          yaml_file.string(), documents.size());
      }
      const YAML::Node root = documents.empty() ? YAML::Node() : documents.front();
      if (root.IsMap()) {
        declarations_->set_node(root, "", yaml_file.string(), errors);
      } else if (!root.IsNull()) {
        errors.push_back(fmt::format("{}: must hold sections of keys, as docs/config.md shows", yaml_file.string()));
      }
    } catch (const YAML::DeepRecursion& error) {
      throw usage_error("{}:{}: lists and sections stand in each other too deep; a configuration has sections of keys",
                        yaml_file.string(), error.mark.line + 1);
    } catch (const YAML::Exception& error) {
      throw usage_error("{}:{}: {}", yaml_file.string(), error.mark.line + 1,
                        why_no_yaml(text, error.mark.line, error.msg));
    }
  }
  for (size_t i = 0; i < overrides.size(); ++i) {
    const auto& text = overrides[i];
    const auto equals = text.find('=');
    if (const size_t words = declarations_->words_of_divided(overrides, i); words > 0) {
      errors.push_back(fmt::format("{0}: an override is one word, without blanks: {0}={1}", text,
                                   excerpt(overrides[i + words - 1])));
      i += words - 1;
      continue;
    }
    if (equals == std::string::npos || equals == 0) {
      errors.push_back(
          fmt::format("{}: an override is written key=value, such as training.max_steps=10", excerpt(text)));
      continue;
    }
    try {
      declarations_->set_value(text.substr(0, equals), YAML::Load(text.substr(equals + 1)), "command line", errors);
    } catch (const YAML::DeepRecursion&) {
      errors.push_back(fmt::format("command line: {}: lists stand in each other too deep", excerpt(text)));
    } catch (const YAML::Exception& error) {
      errors.push_back(fmt::format("command line: {}: the value is not YAML: {}", excerpt(text), excerpt(error.msg)));
    }
  }
  if (!errors.empty()) {
    throw usage_error("{} in the configuration:\n  {}",
                      errors.size() == 1 ? "an error" : fmt::format("{} errors", errors.size()),
                      fmt::join(errors, "\n  "));
  }
}

std::string OptionTable::value_of(std::string_view key) const {
  const auto* const option = declarations_->find(key);
  VLMTRAIN_CHECK(option != nullptr, "no option {} is declared", key);
  YAML::Emitter out;
  option->emit_value(out);
  return out.c_str();
}

std::string OptionTable::to_yaml() const {
  YAML::Emitter out;
  std::vector<std::string> order;
  std::map<std::string, std::vector<const Declarations::Option*>> sections;
  for (const auto& option : declarations_->options) {
    const std::string section = option.key.substr(0, option.key.find('.'));
    if (sections[section].empty()) order.push_back(section);
    sections[section].push_back(&option);
  }
  out << YAML::BeginMap;
  for (const auto& section : order) {
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
  std::string text =
      "# Configuration\n\n"
      "Written by `vlmtrain options --markdown` from the declarations in the code; a test keeps it current.\n"
      "Every key can be overridden on the command line: `vlmtrain --config train.yaml training.max_steps=10`.\n";
  for (const auto& [section, doc] : declarations_->sections) {
    text += fmt::format("\n## `{}`\n\n{}\n\n| key | type | default | meaning |\n|---|---|---|---|\n", section, doc);
    for (const auto& option : declarations_->options) {
      if (option.key.rfind(section + ".", 0) != 0) continue;
      const std::string allowed = option.condition.empty() ? "" : fmt::format(" ({})", option.condition);
      text += fmt::format("| `{}` | {}{} | `{}` | {} |\n", option.key, option.type, allowed, option.default_text,
                          option.doc);
    }
  }
  return text;
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kLongestTypo = 200;
  if (word.size() > kLongestTypo) return std::nullopt;
  std::optional<std::string> best;
  size_t best_distance = std::max<size_t>(3, word.size() / 3);
  for (const auto& candidate : known) {
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t substituted = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

template void OptionTable::add(std::string, bool&, std::string, std::optional<Check<bool>>);
template void OptionTable::add(std::string, int64_t&, std::string, std::optional<Check<int64_t>>);
template void OptionTable::add(std::string, double&, std::string, std::optional<Check<double>>);
template void OptionTable::add(std::string, std::string&, std::string, std::optional<Check<std::string>>);
template void OptionTable::add(std::string, std::vector<std::string>&, std::string,
                               std::optional<Check<std::vector<std::string>>>);
template void OptionTable::add(std::string, std::map<std::string, std::string>&, std::string,
                               std::optional<Check<std::map<std::string, std::string>>>);
template void OptionTable::add(std::string, Auto<int64_t>&, std::string, std::optional<Check<Auto<int64_t>>>);
template void OptionTable::add(std::string, Auto<double>&, std::string, std::optional<Check<Auto<double>>>);

template Check<int64_t> at_least(int64_t);
template Check<double> at_least(double);
template Check<int64_t> greater_than(int64_t);
template Check<double> greater_than(double);
template Check<int64_t> between(int64_t, int64_t);
template Check<double> between(double, double);
template Check<double> between_below(double, double);

}  // namespace vlmtrain
