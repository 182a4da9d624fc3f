#pragma once

#include <yaml-cpp/yaml.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/options.h"

namespace vlmtrain {

/// The declared options of a table, and the lookup of their names.
struct OptionDeclarations {
  struct Option {
    std::string key;
    std::string type;  ///< name in messages and the documentation
    std::string default_value_text;
    std::string condition;  ///< completes "must be …"; empty if the option accepts all values of its type
    OptionInfo info;
    /// Stores a valid value and returns nothing, or returns an error message without the key.
    std::function<std::optional<std::string>(const YAML::Node&)> set;
    std::function<void(YAML::Emitter&)> emit_value;
    /// Sets one entry of a map of strings; returns errors as `set`. Empty for other types.
    std::function<std::optional<std::string>(const std::string& name, const YAML::Node&)> set_entry{};
  };

  struct Hint {
    std::string key;                                ///< empty for foreign keys
    std::shared_ptr<const std::string> suggestion;  ///< see make_key_suggestion(); names of one OptionHint share it
  };

  std::vector<Option> options;
  std::vector<OptionHint> foreign_keys;                            ///< keys of other trainers without an option
  std::map<std::string, std::string> key_by_alias;                 ///< earlier name of a key → the key
  std::multimap<std::string, std::string> keys_by_last_component;  ///< of each key and alias → the key
  std::map<std::string, Hint> hints;                               ///< by the name in other trainers
  std::vector<std::pair<std::string, std::string>> sections;

  /// Adds an option with its aliases and hints. Throws InternalError for names that exist.
  void add_option(Option option);
  /// Adds names of other trainers for `key`, which is empty for foreign keys. Throws InternalError
  /// for names of hints that exist, and if `suggestion` lacks a declared key with such a last
  /// component.
  void add_hints(const std::vector<std::string>& names, const std::string& key, std::string suggestion);
  /// Adds `name`, which is `key` or its alias. Throws InternalError if a hint has its last component
  /// and a suggestion without `key`.
  void add_last_component(const std::string& name, const std::string& key);

  const Option* find_option(std::string_view key) const;
  /// Returns the key of an alias, and any other name unchanged.
  std::string resolve_alias(const std::string& name) const;
  bool is_section(const std::string& key) const;
  /// Returns all keys, then all aliases.
  std::vector<std::string> list_keys_and_aliases() const;
  /// Returns the declared key that `key` probably stands for: one with the same last component,
  /// else one with a similar spelling, else one with a similar last component. `key` may lack its
  /// section.
  std::optional<std::string> find_nearest_key(std::string_view key) const;
  /// See OptionTable::make_key_suggestion().
  std::string make_key_suggestion(std::string_view key) const;
};

/// Returns the part after the last point of a key.
inline std::string_view get_last_component(std::string_view key) {
  return key.substr(key.rfind('.') + 1);  // npos + 1 is 0
}

}  // namespace vlmtrain
